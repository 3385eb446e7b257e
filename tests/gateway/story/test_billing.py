"""Who pays for a chain of attempts: one reservation for its worst case, settled on what came of it, to the token."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from backends.backend import (
    BackendError,
    DeadlineExceeded,
    Delta,
    Generation,
    Overloaded,
    Timings,
    Unavailable,
    Usage,
)
from backends.prompt import ChatMessage, Prompt
from classifier import Assessment
from gateway.config import Cascade, Limits, Price, Server, Telemetry, Tenant
from gateway.config import Tier as TierConfig
from gateway.desk import Desk
from gateway.dispatch import Dispatcher
from gateway.errors import ApiError
from gateway.judges import Judges, Weights
from gateway.ledger import Ledger
from gateway.limits import NOTHING, Amount, Reservation
from gateway.limits_memory import MemoryLimits
from gateway.metering import Meter
from gateway.metrics import Metrics
from gateway.prices import billionths, cost
from gateway.recall import Memory
from gateway.request import Answer, Request
from gateway.telemetry import Traces
from prefixcache.affinity import Affinity
from sessions.retention import always
from sessions.sqlite import SqliteSessions

Make = Callable[..., Any]
SMALL, LARGE = Price(input=100.0, cached=10.0, output=200.0), Price(input=1000.0, cached=100.0, output=2000.0)
PROMPT = "Who are you?"  # 12 tokens


class Watched(MemoryLimits):
    def __init__(self) -> None:
        super().__init__()
        self.reserved: list[Amount] = []
        self.settled: list[Amount] = []

    async def reserve(self, tenant: str, limits: Limits, lease: str, amount: Amount) -> Reservation:
        self.reserved.append(amount)
        return await super().reserve(tenant, limits, lease, amount)

    async def settle(self, reservation: Reservation, limits: Limits, used: Amount | None) -> None:
        self.settled.append(used or NOTHING)
        await super().settle(reservation, limits, used)


class Rig:
    def __init__(self, folder: Path, confident: Any, backend: Make, tier_of: Make) -> None:
        self.confident = confident
        self.small = backend("7b/0", confident.answer(*[confident.UNSURE] * 40, cached=4))
        self.large = backend("70b/0", confident.answer(*[confident.SURE] * 6, text="L"))
        self.tiers = [tier_of("7b", self.small, price=SMALL), tier_of("70b", self.large, price=LARGE)]
        self.limits, self.metrics = Watched(), Metrics(["7b", "70b"], {"7b/0": "m"}, ["acme"])
        self.sessions = SqliteSessions(folder / "sessions.sqlite", always(60.0))
        self.ledger = Ledger()

    def dispatcher(self, billing: Any = "attempts", judged: Sequence[str] = ("7b",)) -> Dispatcher:
        runs = {tier.name: [Weights("m" if tier.name in judged else "x", "bfloat16")] for tier in self.tiers}
        return Dispatcher(
            tiers=self.tiers,
            aliases={},
            server=Server(default_max_tokens=50),
            meter=Meter(self.limits, MemoryLimits(), self.metrics),
            memory=Memory(self.sessions, self.metrics),
            assess=lambda text: Assessment(
                task="qa", good=dict.fromkeys(("7b", "13b", "70b"), 0.9), seconds=0.001
            ),
            desk=Desk([], {}, {}),
            affinity=Affinity(),
            salts={"acme": b"salt"},
            judges=Judges([TierConfig(name="7b")], self.confident.calibrations("m"), runs),
            billing=billing,
            metrics=self.metrics,
            traces=Traces(Telemetry()),
        )

    def request(self, **changes: Any) -> Request:
        tenant = Tenant(
            name="acme",
            limits=Limits(parallel=3),
            cascade=Cascade(**changes.pop("cascade", {})),
            max_request_price=changes.pop("most", None),
        )
        prompt = Prompt(messages=(ChatMessage(role="user", content=PROMPT),))
        self.ledger = Ledger()
        defaults: dict[str, Any] = {"id": "r", "endpoint": "chat", "tenant": tenant, "model": "auto", "prompt": prompt,
                                    "session": None, "timeout": 10.0, "priority": 0, "ledger": self.ledger}  # fmt: skip
        return Request(**defaults | changes)

    async def text(self, answer: Answer) -> str:
        async with aclosing(answer.deltas) as deltas:
            return "".join([delta.text async for delta in deltas])

    def total(self, name: str, **labels: str) -> float:
        return self.metrics.totals().of(name, **labels)


@pytest.fixture
async def rig(tmp_path: Path, confident: Any, backend: Make, tier_of: Make) -> AsyncIterator[Rig]:
    made = Rig(tmp_path, confident, backend, tier_of)
    yield made
    await made.sessions.close()


ASIDE = Usage(prompt_tokens=12, completion_tokens=32, cached_tokens=4)
ANSWER = Usage(prompt_tokens=5, completion_tokens=6)


async def test_the_worst_case_of_the_chain_is_reserved_and_both_attempts_are_paid(rig: Rig) -> None:
    answer = await rig.dispatcher().run(rig.request(max_tokens=100))
    assert answer.tier == answer.headers["x-headrace-tier"] == "70b"
    assert answer.headers["x-headrace-reason"].startswith("70b: escalated from 7b (p=0.12 < 0.50 after 32")
    assert await rig.text(answer) == "".join(f"L{n} " for n in range(6))
    [reserved], [settled] = rig.limits.reserved, rig.limits.settled
    assert (reserved.tokens, reserved.input, reserved.output) == (2 * 112, 24, 200)
    spent = [billionths(cost(SMALL, ASIDE)), billionths(cost(LARGE, ANSWER))]
    assert settled == Amount(tokens=44 + 11, input=17, output=38, money=sum(spent))
    assert settled.money <= reserved.money
    assert [(e.tier, e.outcome, e.usage, e.billed) for e in rig.ledger.entries] == [
        ("7b", "escalated", ASIDE, True),
        ("70b", "answered", ANSWER, True),
    ]
    assert sum(entry.cost for entry in rig.ledger.entries) == rig.total("headrace_cost_total")
    assert rig.total("headrace_ledger_tokens_total", outcome="escalated", kind="completion") == 32
    assert rig.total("headrace_ledger_tokens_total", outcome="answered", kind="completion") == 6
    assert rig.total("headrace_tokens_total", kind="completion") == 38


@pytest.mark.parametrize(("when", "counted"), [("end", 1), ("hold", 0)])
async def test_a_whole_answer_that_nobody_gets_is_one_of_its_engine_s(
    rig: Rig, when: str, counted: int
) -> None:
    """As its engine tells of all that ended by itself, in other series of the same names."""
    *begun, last = rig.confident.answer(*[rig.confident.UNSURE] * 40, cached=4)
    times = Timings(arrived=1.0, scheduled=1.5, first_token=2.0, finished=5.0)
    rig.small.scripts = [[*begun, structs.replace(last, timings=times)]]
    await rig.text(await rig.dispatcher().run(rig.request(cascade={"when": when})))
    assert [entry.outcome for entry in rig.ledger.entries] == ["escalated", "answered"]
    assert rig.total("vllm:e2e_request_latency_seconds_count", engine="7b/0") == counted
    assert rig.total("vllm:request_generation_tokens_sum", engine="7b/0") == 40 * counted


async def test_by_the_answer_alone_where_that_is_the_rule(rig: Rig) -> None:
    answer = await rig.dispatcher("answer").run(rig.request(max_tokens=100))
    await rig.text(answer)
    [reserved], [settled] = rig.limits.reserved, rig.limits.settled
    assert reserved.tokens == 112
    assert settled == Amount(tokens=11, input=5, output=6, money=billionths(cost(LARGE, ANSWER)))
    assert [entry.billed for entry in rig.ledger.entries] == [False, True]
    # What it cost is told all the same.
    assert rig.total("headrace_cost_total", tier="7b") == cost(SMALL, ASIDE)


async def test_what_a_tenant_may_spend_on_a_request_bounds_the_chain(rig: Rig) -> None:
    """Enough for the large tier alone, not for both one after the other."""
    large = (12 * 1000 + 100 * 2000) / 1e6
    dispatcher = rig.dispatcher()
    answer = await dispatcher.run(rig.request(max_tokens=100, most=large + 0.001))
    assert answer.tier == "7b" and len(await rig.text(answer)) > 100
    decision = await dispatcher.decide(rig.request(max_tokens=100, most=large + 0.001))
    assert decision.judged.why_not == "more attempts would exceed max_request_price or max_attempts"
    assert rig.limits.reserved[0].money == billionths(large)


async def test_a_tier_that_is_passed_over_changes_nothing_of_what_is_reserved(
    rig: Rig, backend: Make, tier_of: Make
) -> None:
    """The large tier answers after the small one, as the one between them is down."""
    down = backend("13b/0", available=False)
    rig.tiers.insert(1, tier_of("13b", down, price=SMALL))
    rig.metrics = Metrics(["7b", "13b", "70b"], {"7b/0": "m"}, ["acme"])
    await rig.text(await rig.dispatcher().run(rig.request(max_tokens=100)))
    assert [entry.tier for entry in rig.ledger.entries] == ["7b", "70b"]
    small, large = (12 * 100 + 100 * 200) / 1e6, (12 * 1000 + 100 * 2000) / 1e6
    assert rig.limits.reserved[0].money == billionths(small + large)


ENDS = ("sure", "unsure", "short", "full", "dies", "down")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ends=st.tuples(*[st.sampled_from(ENDS)] * 3),
    money=st.none() | st.integers(1, 60),  # tenths of what the large tier takes alone
    when=st.sampled_from(["hold", "end"]),
    attempts=st.integers(1, 4),
    billing=st.sampled_from(["attempts", "answer"]),
)
@example(ends=("unsure", "full", "sure"), money=21, when="end", attempts=4, billing="attempts")
@example(ends=("unsure", "down", "sure"), money=None, when="end", attempts=4, billing="attempts")
async def test_whatever_comes_no_more_is_charged_than_is_reserved_and_allowed(
    rig: Rig, backend: Make, tier_of: Make, ends: tuple[str, ...], money: int | None, when: Any, attempts: int,
    billing: Any,
) -> None:  # fmt: skip
    """Each answer is as long as it may be."""
    usage = Usage(prompt_tokens=12, completion_tokens=40)
    scripts: dict[str, list[Delta | BackendError]] = {
        name: [*(body := rig.confident.answer(*[sign] * length))[:-1], structs.replace(body[-1], usage=usage)]
        for name, sign, length in (
            ("sure", rig.confident.SURE, 40), ("unsure", rig.confident.UNSURE, 40), ("short", rig.confident.UNSURE, 9)
        )
    } | {"full": [Overloaded("full")], "down": []}  # fmt: skip
    scripts["dies"] = [*scripts["sure"][:20], Unavailable("died")]
    prices = Price(input=100, output=200), Price(input=300, output=600), Price(input=1000, output=2000)
    names = "7b", "13b", "70b"
    rig.tiers = [
        tier_of(name, backend(f"{name}/0", scripts[end], available=end != "down"), price=price)
        for name, end, price in zip(names, ends, prices, strict=True)
    ]
    rig.metrics, rig.limits = Metrics(names, {"7b/0": "m"}, ["acme"]), Watched()
    large = (12 * 1000 + 40 * 2000) / 1e6
    most = None if money is None else large * money / 20
    request = rig.request(max_tokens=40, most=most, cascade={"when": when, "max_attempts": attempts})
    with contextlib.suppress(BackendError, ApiError):
        await rig.text(await rig.dispatcher(billing, judged=names[:2]).run(request))
    assert len(rig.limits.reserved) == len(rig.limits.settled)
    for reserved, settled in zip(rig.limits.reserved, rig.limits.settled, strict=True):
        assert settled.money <= reserved.money and settled.tokens <= reserved.tokens
        assert most is None or settled.money <= billionths(most)
        assert settled.money == sum(billionths(each.cost) for each in rig.ledger.entries if each.billed)
    assert len(rig.ledger.entries) <= attempts


async def test_who_leaves_while_it_is_judged_pays_what_was_made(rig: Rig) -> None:
    begun = asyncio.Event()

    async def stream(generation: Generation) -> AsyncGenerator[Delta, None]:
        for delta in rig.confident.answer(*[rig.confident.SURE] * 40, cached=4)[:9]:
            yield delta
        begun.set()
        await asyncio.sleep(3600)

    rig.small.stream = stream
    run = asyncio.create_task(rig.dispatcher().run(rig.request(cascade={"when": "end"})))
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    usage = Usage(prompt_tokens=12, completion_tokens=9, cached_tokens=4)
    [settled], [entry] = rig.limits.settled, rig.ledger.entries
    assert settled.tokens == 21 and settled.money == billionths(cost(SMALL, usage))
    assert (entry.outcome, entry.usage, entry.billed) == ("aborted", usage, True)


async def test_a_stream_that_is_left_is_paid_with_what_was_cached(rig: Rig) -> None:
    answer = await rig.dispatcher().run(rig.request(cascade={"when": "never"}))
    for _ in range(3):
        await anext(answer.deltas)
    await answer.deltas.aclose()
    assert rig.ledger.entries[0].usage == Usage(prompt_tokens=12, completion_tokens=3, cached_tokens=4)
    assert rig.limits.settled[0].tokens == 15


async def test_what_failed_unseen_is_told_but_not_paid(rig: Rig) -> None:
    rig.small.scripts = [[*rig.confident.answer(*[rig.confident.SURE] * 40)[:9], Unavailable("died")]]
    await rig.text(await rig.dispatcher().run(rig.request()))
    first, second = rig.ledger.entries
    assert (first.outcome, first.billed) == ("engine_died", False)
    assert first.usage == Usage(prompt_tokens=12, completion_tokens=9) and first.cost > 0
    assert rig.limits.settled[0].money == billionths(second.cost)
    assert rig.total("headrace_ledger_tokens_total", outcome="failed", kind="completion") == 9


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_kept_answer_that_breaks_is_paid_by_who_has_seen_it(rig: Rig, streamed: bool) -> None:
    rig.small.scripts = [[*rig.confident.answer(*[rig.confident.SURE] * 40)[:36], Unavailable("died")]]
    with pytest.raises(Unavailable):
        await rig.text(await rig.dispatcher().run(rig.request(streamed=streamed)))
    [entry], [settled] = rig.ledger.entries, rig.limits.settled
    assert (entry.outcome, entry.billed) == ("engine_died", streamed) and entry.cost > 0
    assert settled.money == (billionths(entry.cost) if streamed else 0)


@pytest.mark.parametrize("made", [9, 36])
async def test_whose_deadline_passes_pays_what_was_made(rig: Rig, made: int) -> None:
    """While it was held back, or after it was kept."""
    script = rig.confident.answer(*[rig.confident.SURE] * 40)[:made]
    rig.small.scripts = [[*script, DeadlineExceeded("the request's time is used up")]]
    with pytest.raises(DeadlineExceeded):
        await rig.text(await rig.dispatcher().run(rig.request()))
    [entry], [settled] = rig.ledger.entries, rig.limits.settled
    assert entry.outcome == "deadline_exceeded" and entry.usage is not None
    assert (entry.usage.completion_tokens, entry.billed) == (made, True)
    assert settled.money == billionths(entry.cost)


async def test_a_named_tier_and_prompts_that_share_a_call_are_not_judged(rig: Rig) -> None:
    dispatcher = rig.dispatcher()
    named = await dispatcher.run(rig.request(model="7b"))
    assert named.tier == "7b"
    await rig.text(named)
    for answer in await dispatcher.run_all([rig.request(id="a"), rig.request(id="b")]):
        assert answer.tier == "7b"
        await rig.text(answer)
    assert not any(generation.sampling.signals for generation in rig.small.seen)
    assert rig.limits.reserved[0].tokens == 12 + 50
    decision = await dispatcher.decide(rig.request(model="7b"))
    assert "the client named it" in (decision.judged.why_not or "")


async def test_signals_are_asked_for_where_somebody_judges(rig: Rig) -> None:
    await rig.text(await rig.dispatcher().run(rig.request()))
    assert [generation.sampling.signals for generation in (*rig.small.seen, *rig.large.seen)] == [True, False]
    assert rig.large.warmed and rig.large.warmed[0].ids == rig.large.seen[0].ids


async def test_what_would_be_judged_is_told_before(rig: Rig) -> None:
    judged = (await rig.dispatcher().decide(rig.request())).judged
    assert (judged.when, judged.after, judged.at_end, judged.next) == ("hold", (8, 16, 32), True, "70b")
    never = (await rig.dispatcher().decide(rig.request(cascade={"when": "never"}))).judged
    assert never.why_not == "cascade.when is never" and never.when is None
    assert rig.limits.reserved == []
