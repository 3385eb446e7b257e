"""Everything behind `Dispatcher.run`, with a classifier and limits that a test can look into."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from backends.prompt import ChatMessage, Prompt
from classifier import Assessment
from gateway.books import Billing
from gateway.config import Limits, Policy, Server, Telemetry, Tenant
from gateway.desk import Desk
from gateway.dispatch import Dispatcher
from gateway.judges import Judges
from gateway.limits import Amount, LimitStoreUnavailable, Reservation
from gateway.limits_memory import MemoryLimits
from gateway.metering import Meter
from gateway.metrics import Metrics
from gateway.recall import Memory
from gateway.request import Answer, Request
from gateway.telemetry import Traces
from gateway.tiers import Tier
from prefixcache.affinity import Affinity
from sessions.retention import always
from sessions.sqlite import SqliteSessions

SALT = b"salt of acme"


class FixedClassifier:
    """Says the same of every prompt, and remembers what it was asked."""

    def __init__(self, small: float, middle: float) -> None:
        self.good = {"7b": small, "13b": middle}
        self.asked: list[str] = []

    def assess(self, text: str) -> Assessment:
        self.asked.append(text)
        return Assessment(task="qa", good=self.good, seconds=0.001)


class WatchedLimits(MemoryLimits):
    """Real limits that also write down what is taken and given back, and can be switched off."""

    def __init__(self) -> None:
        super().__init__()
        self.reserved: list[int] = []  # tokens
        self.settled: list[int | None] = []  # None: never ran
        self.money: list[tuple[str, int]] = []
        self.up = True

    async def reserve(self, tenant: str, limits: Limits, lease: str, amount: Amount) -> Reservation:
        if not self.up:
            raise LimitStoreUnavailable("switched off")
        reservation = await super().reserve(tenant, limits, lease, amount)
        self.reserved.append(amount.tokens)
        self.money.append(("reserved", amount.money))
        return reservation

    async def settle(self, reservation: Reservation, limits: Limits, used: Amount | None) -> None:
        self.settled.append(None if used is None else used.tokens)
        self.money.append(("settled", 0 if used is None else used.money))
        await super().settle(reservation, limits, used)


class Gateway:
    """Everything behind `Dispatcher.run`, held in the hand."""

    def __init__(
        self,
        folder: Path,
        tiers: Sequence[Tier],
        good: tuple[float, float] = (0.9, 0.9),
        shadows: Mapping[str, Policy] | None = None,
        judges: Judges | None = None,
        billing: Billing = "attempts",
    ) -> None:
        names = [tier.name for tier in tiers]
        engines = {replica.name: replica.model for tier in tiers for replica in tier.replicas}
        self.metrics = Metrics(names, engines, ["acme"], shadows=list(shadows or {}))
        self.limits, self.fallback = WatchedLimits(), WatchedLimits()
        self.sessions = SqliteSessions(folder / "sessions.sqlite", always(60.0))
        self.affinity = Affinity()
        self.classifier = FixedClassifier(*good)
        self.dispatcher = Dispatcher(
            tiers=tiers,
            aliases={"gpt-4o": "auto", "big": "13b"},
            server=Server(default_max_tokens=50),
            meter=Meter(self.limits, self.fallback, self.metrics),
            memory=Memory(self.sessions, self.metrics),
            assess=lambda text: self.classifier.assess(text),
            desk=Desk([], {}, shadows or {}),
            affinity=self.affinity,
            salts={"acme": SALT},
            judges=judges or Judges.none(*names),
            billing=billing,
            metrics=self.metrics,
            traces=Traces(Telemetry()),
        )

    async def run(self, *said: str, **changes: Any) -> Answer:
        tenant = Tenant(
            name="acme",
            limits=changes.pop(
                "limits", Limits(requests_per_minute=100, tokens_per_minute=10_000, parallel=3)
            ),
            tiers=changes.pop("tiers", None),
            max_request_price=changes.pop("max_request_price", None),
            weight=2.5,
        )
        messages = tuple(ChatMessage(role="user", content=text) for text in said)
        request: dict[str, Any] = {
            "id": "req_1", "endpoint": "chat", "tenant": tenant, "model": "auto", "prompt": Prompt(messages=messages),
            "max_tokens": None, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": None, "stop": (),
            "stop_token_ids": (), "ignore_eos": False, "session": None, "timeout": 10.0, "priority": 0,
        }  # fmt: skip
        return await self.dispatcher.run(Request(**(request | changes)))

    async def say(self, *said: str, **changes: Any) -> str:
        answer = await self.run(*said, **changes)
        async with aclosing(answer.deltas):
            return "".join([delta.text async for delta in answer.deltas])

    def scrape(self) -> str:
        return self.metrics.render().decode()

    async def history(self, session: str) -> list[tuple[str, str, bool]]:
        turns = (await self.sessions.get("acme", session)).turns
        return [(turn.role, turn.content, turn.partial) for turn in turns]
