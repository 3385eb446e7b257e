"""Read and check the configuration: `load_config`, `parse_config`, `load_preset`, `check_config`.

All mistakes of a file are told at once, each with its line, its path and the reason. Nothing is expanded in
the file: secrets come from the environment, by the fields whose names end in `_env`.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import resources
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec

from backends.catalogue import CATALOGUE
from gateway import strictyaml
from gateway.config import Config, Tenant, Tier
from gateway.ranks import refused
from gateway.strictyaml import Document, Mistake, nearest
from sessions.address import fault_of

AUTO = "auto"  # the model name that leaves the tier to the gateway

_Fault = tuple[strictyaml.Path, str]
Rule = Callable[[Config], Iterable[_Fault]]


class ConfigError(ValueError):
    """Everything that is wrong with a configuration, one line each, in the order of the file."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(sorted(mistakes, key=lambda mistake: mistake.line or 0))
        super().__init__("\n".join(map(str, self.mistakes)))

    @property
    def without_folders(self) -> str:
        """The same lines, with the file's name alone, for whoever need not know where it lies."""
        named = (replace(mistake, file=Path(mistake.file).name) for mistake in self.mistakes)
        return "\n".join(map(str, named))


def load_config(path: Path, *rules: Rule) -> Config:
    """Relative folders are taken from the file's own. `rules`: what else has to hold. Raises ConfigError, also for an
    unreadable file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError([Mistake(str(path), None, (), f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Mistake(str(path), None, (), f"is not UTF-8 at byte {error.start}")]) from error
    return _with_paths_in(parse_config(text, str(path), *rules), path.resolve().parent)


def parse_config(text: str, name: str, *rules: Rule) -> Config:
    """`name` stands before each mistake, where a file's path would. Raises ConfigError."""
    config, document = strictyaml.read(text, name, Config)
    if config is not None:
        _apply_rules(config, document, *_RULES, *rules)
    if config is None or document.mistakes:
        raise ConfigError(document.mistakes)
    return config


def check_config(config: Config, name: str = "configuration") -> None:
    """Check what holds between fields, for a configuration changed after it was read. Raises ConfigError."""
    document = Document(name)
    _apply_rules(config, document, *_RULES)
    if document.mistakes:
        raise ConfigError(document.mistakes)


def preset_names() -> tuple[str, ...]:
    """The configurations that come with the package."""
    files = resources.files("gateway").joinpath("presets").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def load_preset(name: str) -> Config:
    """With its state in the user's own state folder (XDG_STATE_HOME). Raises ConfigError for an unknown name."""
    if name not in preset_names():
        reason = f"no such preset; {nearest(name, preset_names())}"
        raise ConfigError([Mistake("presets", None, (name,), reason)])
    presets = resources.files("gateway").joinpath("presets")
    config = parse_config(presets.joinpath(f"{name}.yaml").read_text(encoding="utf-8"), f"{name}.yaml")
    states = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return msgspec.structs.replace(
        config,
        state=msgspec.structs.replace(config.state, folder=str(Path(states) / "headrace")),
        classifier=None if config.classifier is None else str(presets.joinpath(config.classifier)),
        calibration=None if config.calibration is None else str(presets.joinpath(config.calibration)),
    )


def _with_paths_in(config: Config, folder: Path) -> Config:
    """With the folders that this gateway writes or reads, and files of keys, taken from the file's own."""
    state = msgspec.structs.replace(config.state, folder=str(folder / config.state.folder))
    classifier = None if config.classifier is None else str(folder / config.classifier)
    calibration = None if config.calibration is None else str(folder / config.calibration)
    records = config.telemetry.records
    telemetry = msgspec.structs.replace(
        config.telemetry, records=None if records is None else str(folder / records)
    )
    sampling = config.shadow_sampling
    if sampling is not None:
        sampling = msgspec.structs.replace(sampling, recordings=str(folder / sampling.recordings))
    return msgspec.structs.replace(
        config,
        state=state,
        classifier=classifier,
        calibration=calibration,
        telemetry=telemetry,
        shadow_sampling=sampling,
        tiers=tuple(_with_keys_in(tier, folder) for tier in config.tiers),
    )


def _with_keys_in(tier: Tier, folder: Path) -> Tier:
    remotes = tuple(
        remote
        if remote.api_key_file is None
        else msgspec.structs.replace(remote, api_key_file=str(folder / remote.api_key_file))
        for remote in tier.remotes
    )
    return msgspec.structs.replace(tier, remotes=remotes)


def config_schema() -> dict[str, Any]:
    """The JSON schema of a configuration, for editors and other tools."""
    return msgspec.json.schema(Config)


def is_loopback(host: str) -> bool:
    """Whether nobody beyond this machine reaches `host`. A name other than localhost is not resolved: no."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _apply_rules(config: Config, document: Document, *rules: Rule) -> None:
    """Note what is wrong between fields, except where a mistake in reading is the cause."""
    faults = [fault for rule in rules for fault in rule(config) if not document.doubtful(fault[0])]
    for path, reason in faults:
        document.note(path, reason)


def _tiers(config: Config) -> Iterator[_Fault]:
    yield from _repeated((("tiers", i, "name"), tier.name) for i, tier in enumerate(config.tiers))
    for i, tier in enumerate(config.tiers):
        if tier.name == AUTO:
            yield ("tiers", i, "name"), f"{AUTO} is reserved: it leaves the tier to the gateway"
        if not tier.engines and not tier.remotes:
            yield ("tiers", i), "needs at least one entry in engines or in remotes"


def _engines(config: Config) -> Iterator[_Fault]:
    for i, tier in enumerate(config.tiers):
        for j, engine in enumerate(tier.engines):
            if engine.max_model_len is not None and engine.max_model_len > engine.kv_tokens:
                reason = f"{engine.max_model_len} tokens do not fit into kv_tokens, {engine.kv_tokens}"
                yield ("tiers", i, "engines", j, "max_model_len"), reason


def _bands(config: Config) -> Iterator[_Fault]:
    for number, tier in enumerate(config.tiers):
        for place, engine in enumerate(tier.engines):
            path: tuple[str | int, ...] = ("tiers", number, "engines", place, "bands")
            *bounds, last = [band.below for band in engine.bands]
            for at, bound in enumerate(bounds):
                if bound is None:
                    yield (*path, at), "needs `below`: only the last band is for however many"
                elif at and bound <= (bounds[at - 1] or 0):
                    yield (*path, at, "below"), "must be more than in the band before"
            if last is not None:
                yield (*path, len(bounds), "below"), "must not be there: the last band is for however many"


def _ranks(config: Config) -> Iterator[_Fault]:
    for i, tier in enumerate(config.tiers):
        for j, engine in enumerate(tier.engines):
            reason = refused(engine)
            if reason is not None:
                yield ("tiers", i, "engines", j, "tensor_parallel"), reason


def _models(config: Config) -> Iterator[_Fault]:
    for i, tier in enumerate(config.tiers):
        for j, engine in enumerate(tier.engines):
            path = ("tiers", i, "engines", j)
            yield from _unknown_model((*path, "model"), engine.model)
            if engine.speculation.draft is not None:
                yield from _unknown_model((*path, "speculation", "draft"), engine.speculation.draft)


def _unknown_model(path: strictyaml.Path, name: str) -> Iterator[_Fault]:
    """Bare names only: a path need not exist on the machine where a configuration is checked."""
    if "/" in name or name.endswith(".gguf") or name in CATALOGUE or Path(name).is_dir():
        return
    yield path, f"the catalogue has no model {name}; {nearest(name, list(CATALOGUE))}"


def _speculation(config: Config) -> Iterator[_Fault]:
    for i, tier in enumerate(config.tiers):
        for j, engine in enumerate(tier.engines):
            path, asked = ("tiers", i, "engines", j, "speculation"), engine.speculation
            if asked.method in ("draft", "both") and asked.draft is None:
                yield path, f"method {asked.method} needs `draft`, the model that drafts"
            if asked.method in ("off", "ngram") and asked.draft is not None:
                yield (
                    (*path, "draft"),
                    f"is not asked with method {asked.method}; draft and both have a model",
                )
            if asked.draft_quantization is not None and asked.draft is None:
                yield (*path, "draft_quantization"), "needs `draft` beside it"


def _quantizations(config: Config) -> Iterator[_Fault]:
    for i, tier in enumerate(config.tiers):
        for j, engine in enumerate(tier.engines):
            path = ("tiers", i, "engines", j)
            if engine.dtype not in ("auto", engine.computes):
                yield (
                    (*path, "dtype"),
                    f"is {engine.dtype}, and quantization {engine.quantization} says {engine.computes}",
                )
            if engine.computes == "float16" and engine.device == "cpu":
                yield (*path, "dtype"), "float16 needs a GPU; CPUs have float32 and bfloat16"
            asked = {
                (*path, "quantization"): engine.quantization,
                (*path, "speculation", "draft_quantization"): engine.speculation.draft_quantization,
            }
            for field, quantization in asked.items():
                if quantization == "fp8" and engine.device == "cpu":
                    yield field, "fp8 needs a GPU; int8 runs on any device"


def _kv_caches(config: Config) -> Iterator[_Fault]:
    for i, tier in enumerate(config.tiers):
        for j, engine in enumerate(tier.engines):
            place = ("tiers", i, "engines", j, "kv_cache")
            if engine.kv_cache == "fp8" and engine.device == "cpu":
                yield place, "fp8 needs a GPU; on CPUs there are fp32, bf16, int8 and int4"
            if engine.kv_cache == "int4" and engine.device != "cpu":
                yield place, "int4 is for CPUs; on GPUs there are fp32, bf16, int8 and fp8"


def _tenants(config: Config) -> Iterator[_Fault]:
    callers = list(_callers(config))
    yield from _repeated(((*path, "name"), tenant.name) for path, tenant in callers)
    for path, tenant in callers:
        for i, tier in enumerate(tenant.tiers or ()):
            yield from _unknown_tier(config, (*path, "tiers", i), tier)


def _bursts(config: Config) -> Iterator[_Fault]:
    for path, tenant in _callers(config):
        for units in ("requests", "tokens", "input_tokens", "output_tokens"):
            given = getattr(tenant.limits, f"{units}_burst") is not None
            if given and getattr(tenant.limits, f"{units}_per_minute") is None:
                yield (*path, "limits", f"{units}_burst"), f"needs {units}_per_minute beside it"


def _policies(config: Config) -> Iterator[_Fault]:
    wanted = [((*path, "policy"), tenant.policy) for path, tenant in _callers(config)]
    wanted += [(("shadow_policies", name), policy) for name, policy in config.shadow_policies.items()]
    free = not any(tier.price.input or tier.price.output for tier in config.tiers)
    for path, policy in wanted:
        goals = [goal.kind for goal in policy.goals]
        if len(goals) > 1:
            yield (*path, goals[1]), f"is a second goal beside {goals[0]}; a policy has one"
        elif goals and free:
            yield (*path, goals[0]), "needs prices: those of all tiers are 0"


def _keys(config: Config) -> Iterator[_Fault]:
    yield from _repeated(
        ((*path, "keys", i, "digest"), key.digest)
        for path, tenant in _callers(config)
        for i, key in enumerate(tenant.keys)
    )


def _anonymous(config: Config) -> Iterator[_Fault]:
    if config.anonymous is None:
        return
    if config.anonymous.keys:
        yield ("anonymous", "keys"), "must be empty: who has a key is a tenant"
    if not is_loopback(config.server.host):
        reason = "must be a loopback address while there is an anonymous tenant, or anyone could call"
        yield ("server", "host"), reason


def _server_keys(config: Config) -> Iterator[_Fault]:
    for i, tier in enumerate(config.tiers):
        for k, remote in enumerate(tier.remotes):
            if remote.api_key_env is not None and remote.api_key_file is not None:
                yield ("tiers", i, "remotes", k, "api_key_file"), "not allowed beside api_key_env"


def _redis(config: Config) -> Iterator[_Fault]:
    if config.state.redis is not None and config.state.redis_env is not None:
        yield ("state", "redis_env"), "not allowed beside redis"
    if config.state.redis is not None and (fault := fault_of(config.state.redis)) is not None:
        yield ("state", "redis"), fault


def _administration(config: Config) -> Iterator[_Fault]:
    admin = config.server.admin
    if admin is None:
        return
    if admin.port and (admin.host, admin.port) == (config.server.host, config.server.port):
        yield ("server", "admin", "port"), "is that of server.port"
    if not is_loopback(admin.host) and not any(tenant.admin and tenant.keys for tenant in config.tenants):
        reason = "beyond this machine it needs a key: a tenant with admin: true and one in keys"
        yield ("server", "admin", "host"), reason


def _shadow_sampling(config: Config) -> Iterator[_Fault]:
    if config.shadow_sampling is not None and len(config.tiers) < 2:
        yield ("shadow_sampling",), "needs two tiers at least: the dearest one is compared with"


def _aliases(config: Config) -> Iterator[_Fault]:
    names = {AUTO, *(tier.name for tier in config.tiers)}
    for alias, target in config.aliases.items():
        if alias in names:
            yield ("aliases", alias), "hides a model of the same name"
        if target != AUTO:
            yield from _unknown_tier(config, ("aliases", alias), target)


_RULES: tuple[Rule, ...] = (
    _tiers,
    _engines,
    _bands,
    _ranks,
    _models,
    _speculation,
    _quantizations,
    _kv_caches,
    _tenants,
    _bursts,
    _policies,
    _keys,
    _anonymous,
    _server_keys,
    _redis,
    _administration,
    _aliases,
    _shadow_sampling,
)


def _callers(config: Config) -> Iterator[tuple[strictyaml.Path, Tenant]]:
    for i, tenant in enumerate(config.tenants):
        yield ("tenants", i), tenant
    if config.anonymous is not None:
        yield ("anonymous",), config.anonymous


def _unknown_tier(config: Config, path: strictyaml.Path, name: str) -> Iterator[_Fault]:
    """Silent while a tier's own name is missing: it may be the one that is meant."""
    names = list(dict.fromkeys(tier.name for tier in config.tiers))
    if name and "" not in names and name not in names:
        yield path, f"there is no tier {name}; {nearest(name, names)}"


def _repeated(values: Iterable[tuple[strictyaml.Path, str]]) -> Iterator[_Fault]:
    first: dict[str, strictyaml.Path] = {}
    for path, value in values:
        if value and first.setdefault(value, path) != path:
            yield path, f"is the same as {strictyaml.dotted(first[value])}"
