"""Three scripted tiers, of which the small two are judged."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from prometheus_client import CollectorRegistry

from backends.backend import BackendError, Delta, Usage
from classifier import Assessment
from classifier.prospects import Prospect
from gateway import cascade
from gateway.cascade import Attempt, Plan, Start
from gateway.cascade_metrics import CascadeMetrics
from gateway.config import Cascade, Price, Telemetry, Tenant
from gateway.config import Tier as TierConfig
from gateway.holding import Held
from gateway.judges import Brief, Judges, Weights
from gateway.ledger import RUNNING, Entry, Ledger
from gateway.request import Route
from gateway.routing import TierSignals
from gateway.telemetry import Traces
from gateway.tiers import Replica, Tier

Make = Callable[..., Any]
QA = Assessment(task="qa", good={"7b": 0.5, "13b": 0.6, "70b": 0.7}, seconds=0.001)
TIERS = ("7b", "13b", "70b")
SIGNALS = tuple(
    TierSignals(
        name=name,
        available=True,
        context_length=999,
        prompt_tokens=1000,
        cached_tokens=0,
        price=Price(input=p),
    )
    for name, p in zip(TIERS, (1.0, 3.0, 10.0), strict=True)
)
LARGE = [Delta(text="L0 ", tokens=1), Delta(text="L1", tokens=1, finish="stop",
         usage=Usage(prompt_tokens=5, completion_tokens=2))]  # fmt: skip


class Rig:
    """Three tiers of one scripted backend each; the small two are judged."""

    def __init__(self, confident: Any, backend: Make, tier_of: Make) -> None:
        self.confident = confident
        self.scripts: dict[str, Sequence[Delta | BackendError]] = {name: LARGE for name in TIERS}
        self.backends: dict[str, Any] = {}
        self._backend, self._tier_of = backend, tier_of
        self.ledger = Ledger()
        self.registry = CollectorRegistry()
        self.metrics = CascadeMetrics(self.registry, TIERS)
        self.aside: list[tuple[str, str, Usage]] = []
        self.watched: list[bool] = []
        self.route = Route(order=TIERS, reason="7b: because", assessment=QA)

    def plan(
        self,
        may: Callable[[Sequence[str], str], bool] = lambda wanting, tier: True,
        start: Start | None = None,
        n: int = 1,
        prospects: Sequence[Prospect] = (),
        weight: float | None = None,
        **terms: Any,
    ) -> Plan:
        configs = [TierConfig(name=name, cascade=Cascade(**terms)) for name in TIERS]
        weights = {"7b": "m", "13b": "m", "70b": "unknown"}
        judges = Judges(
            configs,
            self.confident.calibrations("m", prospects=prospects),
            {name: [Weights(model, "bfloat16")] for name, model in weights.items()},
        )

        def brief(tier: Tier, replica: Replica) -> Brief | None:
            found = judges.brief(Tenant(name="acme"), tier.name, QA, n, SIGNALS, weight)
            return None if isinstance(found, str) else found

        def set_aside(tier: Tier, replica: Replica, entry: Entry, held: Held) -> None:
            assert entry.outcome != RUNNING
            self.aside.append((tier.name, entry.outcome, held.used(5)))

        return Plan(
            route=self.route, cached={}, start=start or self._start, brief=brief, set_aside=set_aside,
            warm=lambda tier, replica: replica.backend.warm(tier.name),  # type: ignore[arg-type]
            attempts=judges.attempts(Tenant(name="acme"), "7b"), follows=may,
        )  # fmt: skip

    def _start(
        self, tier: Tier, replica: Replica, entry: Entry, watched: bool
    ) -> AsyncGenerator[Delta, None]:
        self.watched.append(watched)
        return replica.backend.stream(tier.name)  # type: ignore[arg-type]

    async def run(self, **terms: Any) -> Attempt:
        self.backends = {name: self._backend(f"{name}/0", script) for name, script in self.scripts.items()}
        tiers = {name: self._tier_of(name, each) for name, each in self.backends.items()}
        plan = self.plan(**terms)
        return await cascade.run(plan, tiers, self.ledger, self.metrics, Traces(Telemetry()))

    async def text(self, attempt: Attempt) -> str:
        async with aclosing(attempt.rest) as rest:
            told = [*attempt.held, *[delta async for delta in rest]]
        return "".join(delta.text for delta in told)

    def opened(self) -> list[int]:
        return [self.backends[name].opened for name in TIERS]

    def idle(self) -> bool:
        return all(each.in_flight == 0 and each.opened == each.closed for each in self.backends.values())

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0
