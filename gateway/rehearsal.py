"""A gateway that decides but runs nothing, straight from a configuration: what `headrace explain` asks.

It has the real classifier, policies and, where a model is on this machine, its tokenizer. What only a running gateway
knows counts as follows: nothing is cached, nobody is busy, every replica answers, no session is open.
"""

import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from backends.backend import Delta, Generation, Sampling, Unavailable
from backends.catalogue import resolve
from backends.prompt import Prompt
from backends.tokenizer import Tokenizer
from classifier.model import Classifier
from gateway.config import Config, Engine, Remote, Telemetry, Tenant
from gateway.config import Tier as TierConfig
from gateway.configfile import AUTO
from gateway.desk import Desk
from gateway.dispatch import Dispatcher
from gateway.fleet import context_length
from gateway.limits_memory import MemoryLimits
from gateway.live import Salts, everybody
from gateway.metering import Meter
from gateway.metrics import Metrics
from gateway.recall import Memory
from gateway.request import Decision, Request
from gateway.strictyaml import nearest
from gateway.telemetry import Traces
from gateway.tiers import Replica, Tier
from gateway.weights import open_judges
from prefixcache.affinity import Affinity
from sessions.retention import always
from sessions.sqlite import SqliteSessions

UNKNOWN = (
    "cached prefixes",
    "load",
    "which replicas answer",
    "what is left of limits and budgets",
    "requests over which goals are kept",
    "sessions",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """`left_out`: tiers that the tenant's request cannot take, each with the reason; `estimated`: tiers whose tokens
    are a guess, since no tokenizer of theirs is here."""

    decision: Decision
    left_out: dict[str, str]
    estimated: tuple[str, ...]


async def rehearse(
    config: Config, tenant: str | None, prompt: Prompt, model: str = AUTO, max_tokens: int | None = None
) -> Rehearsed:
    """`tenant`: None for the anonymous one. Raises ValueError for an unknown tenant, ApiError as a gateway would."""
    caller = _caller(config, tenant)
    tiers = [_tier(tier) for tier in config.tiers]
    request = Request(
        id=f"explain-{secrets.token_hex(4)}",
        endpoint="completions" if prompt.text is not None else "chat",
        tenant=caller,
        model=model,
        prompt=prompt,
        max_tokens=max_tokens,
        session=None,
        timeout=config.server.default_timeout,
        priority=caller.priority,
    )
    decision = await _dispatcher(config, tiers).decide(request)
    taken = decision.prompt_tokens
    return Rehearsed(
        decision=decision,
        left_out={
            tier.name: _why(caller, tier.name) for tier in tiers if tier.name not in taken and model == AUTO
        },
        estimated=tuple(
            tier.name
            for tier in tiers
            if tier.name in taken and all(replica.backend.tokenizer is None for replica in tier.replicas)
        ),
    )


def _caller(config: Config, name: str | None) -> Tenant:
    names = [tenant.name for tenant in everybody(config)]
    if name is None:
        if config.anonymous is None:
            raise ValueError(
                f"--tenant: the configuration has no anonymous tenant; known: {', '.join(names)}"
            )
        return config.anonymous
    for tenant in everybody(config):
        if tenant.name == name:
            return tenant
    raise ValueError(f"--tenant: there is no tenant {name}; {nearest(name, names)}")


def _why(tenant: Tenant, tier: str) -> str:
    if tenant.tiers is not None and tier not in tenant.tiers:
        return f"not open to {tenant.name}"
    return f"could cost more than max_request_price of {tenant.name}"


def _dispatcher(config: Config, tiers: list[Tier]) -> Dispatcher:
    metrics = Metrics([tier.name for tier in tiers], {}, [], shadows=list(config.shadow_policies))
    classifier = Classifier.load(Path(config.classifier) if config.classifier is not None else None)
    # Opened at its first use, to which it never comes.
    sessions = SqliteSessions(Path(config.state.folder) / "sessions.sqlite", always(0.0))
    return Dispatcher(
        tiers=tiers,
        aliases=config.aliases,
        server=config.server,
        meter=Meter(MemoryLimits(), MemoryLimits(), metrics),
        memory=Memory(sessions, metrics),
        assess=classifier.assess,
        desk=Desk(config.tiers, classifier.usual, config.shadow_policies),
        affinity=Affinity(),
        salts=Salts(secrets.token_bytes(32)),
        judges=open_judges(config),
        billing=config.billing,
        metrics=metrics,
        traces=Traces(Telemetry()),
    )


def _tier(tier: TierConfig) -> Tier:
    engines = [_of_engine(f"{tier.name}/{n}", engine) for n, engine in enumerate(tier.engines)]
    remotes = [_of_remote(f"{tier.name}/{n}", remote) for n, remote in enumerate(tier.remotes, len(engines))]
    return Tier(tier.name, (*engines, *remotes), tier.price)


def _of_engine(name: str, engine: Engine) -> Replica:
    try:
        folder = resolve(engine.model)
    except ValueError:  # it is not on this machine
        return Replica(_Silent(name, None, engine.max_model_len or engine.kv_tokens), engine.model)
    return Replica(_Silent(name, Tokenizer(folder), context_length(folder, engine)), engine.model)


def _of_remote(name: str, remote: Remote) -> Replica:
    known = remote.tokenizer is not None and Path(remote.tokenizer).is_dir()
    tokenizer = Tokenizer(Path(remote.tokenizer)) if known and remote.tokenizer is not None else None
    return Replica(_Silent(name, tokenizer, remote.context_length), remote.model)


@dataclass(frozen=True)
class _Silent:
    """A `Backend` that could answer, for all that is known, and is never asked."""

    name: str
    tokenizer: Tokenizer | None
    context_length: int
    available: bool = True
    recovering: bool = False
    tripped: bool = False
    in_flight: int = 0
    takes_tools: bool = True

    def refusal(self, prompt: Prompt, sampling: Sampling) -> None:
        """A prompt alone asks nothing that is not honoured everywhere."""

    async def stream(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        raise Unavailable("nothing runs in a rehearsal")
        yield Delta()

    async def warm(self, generation: Generation) -> bool:
        """Nothing runs."""
        return False

    async def start(self) -> None:
        """Nothing runs."""

    async def close(self) -> None:
        """Nothing runs."""
