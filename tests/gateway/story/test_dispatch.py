"""The story of a request over scripted backends and real stores: what is reserved, settled and remembered."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.backend import BackendError, Delta, Rejected, Unavailable
from backends.prompt import ChatMessage, Prompt
from backends.wire import Grammar
from classifier import Assessment
from gateway.books import Billing
from gateway.config import Budget, Limits, Policy, Price, Server, Telemetry, Tenant
from gateway.desk import Desk
from gateway.dispatch import Dispatcher
from gateway.errors import ApiError, as_api_error
from gateway.judges import Judges
from gateway.ledger import ABORTED, ANSWERED, Ledger
from gateway.limits import NOTHING, Amount, LimitStoreUnavailable, Reservation
from gateway.limits_memory import MemoryLimits
from gateway.metering import Meter
from gateway.metrics import Metrics
from gateway.recall import Memory
from gateway.request import Answer, Request
from gateway.telemetry import Traces
from gateway.tenants import engine_tag
from gateway.tiers import Tier
from prefixcache.affinity import Affinity, block_keys
from sessions.retention import always
from sessions.sqlite import SqliteSessions

Make = Callable[..., Any]
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
        self.settled: list[int] = []
        self.money: list[tuple[str, int]] = []
        self.up = True

    async def reserve(self, tenant: str, limits: Limits, lease: str, amount: Amount) -> Reservation:
        if not self.up:
            raise LimitStoreUnavailable("switched off")
        reservation = await super().reserve(tenant, limits, lease, amount)
        self.reserved.append(amount.tokens)
        self.money.append(("reserved", amount.money))
        return reservation

    async def settle(self, reservation: Reservation, limits: Limits, used: Amount) -> None:
        self.settled.append(used.tokens)
        self.money.append(("settled", used.money))
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


@pytest.fixture
async def gateway(tmp_path: Path, backend: Make, tier_of: Make) -> AsyncIterator[Gateway]:
    """Two tiers, one replica each, that say "Hello world"."""
    made = Gateway(tmp_path, [tier_of("7b", backend("7b/0")), tier_of("13b", backend("13b/0"))])
    yield made
    await made.sessions.close()


async def test_an_answer_and_what_it_costs(gateway: Gateway) -> None:
    answer = await gateway.run("Who are you?", max_tokens=7)
    async with aclosing(answer.deltas):
        assert [delta.text async for delta in answer.deltas] == ["Hello", " world"]
    assert (answer.tier, answer.session) == ("7b", None)
    assert answer.headers["x-headrace-reason"] == "7b: p=0.90 >= 0.70, 0 of 12 prompt tokens cached"
    assert answer.headers["x-headrace-task"] == "qa"
    assert gateway.limits.reserved == [12 + 7]
    assert gateway.limits.settled == [5 + 2]  # what the backend reported
    assert gateway.classifier.asked == ["Who are you?"]


async def test_an_engine_learns_of_what_kind_a_request_is(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    """By the client's word, else by the classifier's; nobody has one where the tier is named."""
    one = backend("7b/0")
    gateway = Gateway(tmp_path, [tier_of("7b", one)])
    for asked in ({}, {"task": "code"}, {"model": "7b"}, {"model": "7b", "task": "summarization"}):
        await gateway.say("Who are you?", **asked)
    assert [generation.task for generation in one.seen] == ["qa", "code", "", "summarization"]
    await gateway.sessions.close()


async def test_an_engine_learns_how_urgent_it_is_and_whose_without_a_name(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    one = backend("7b/0")
    gateway = Gateway(tmp_path, [tier_of("7b", one)])
    await gateway.say("Hello", traffic="batch", priority=3)
    await gateway.say("Hello", session="new")
    alone, first = one.seen
    assert (alone.traffic, alone.priority, alone.weight, alone.session) == ("batch", 3, 2.5, "")
    assert first.traffic == "interactive" and first.session not in ("", "new")
    assert alone.tenant == first.tenant == engine_tag(SALT) != "acme"
    await gateway.sessions.close()


async def test_a_request_without_max_tokens_reserves_the_default_and_gets_no_more(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    one = backend("7b/0", context_length=60)
    gateway = Gateway(tmp_path, [tier_of("7b", one)])
    await gateway.say("12345")
    await gateway.say("x" * 40)  # leaves room for 20
    assert gateway.limits.reserved == [5 + 50, 40 + 20]
    assert [generation.sampling.max_tokens for generation in one.seen] == [50, 20]


async def test_seeds_are_drawn_where_none_is_given(tmp_path: Path, backend: Make, tier_of: Make) -> None:
    one = backend("7b/0")
    gateway = Gateway(tmp_path, [tier_of("7b", one)])
    for seed in (None, None, 7):
        await gateway.say("Hi", seed=seed)
    first, second, third = (generation.sampling.seed for generation in one.seen)
    assert first != second
    assert third == 7
    assert one.seen[0].salt == SALT
    assert 9 < (one.seen[0].timeout or 0) <= 10


async def test_several_answers_are_reserved_for(tmp_path: Path, backend: Make, tier_of: Make) -> None:
    one = backend("7b/0", context_length=12)
    gateway = Gateway(tmp_path, [tier_of("7b", one)])
    await gateway.say("12345", max_tokens=7, n=3, logit_bias={4: 1.0}, logprobs=2, min_p=0.1)
    assert gateway.limits.reserved == [5 + 3 * 7]
    sampling = one.seen[0].sampling
    assert (sampling.n, sampling.logit_bias, sampling.logprobs, sampling.min_p) == (3, {4: 1.0}, 2, 0.1)
    await gateway.say("x" * 12, max_tokens=0)  # no answer needs no room
    assert gateway.limits.reserved[1] == 12
    assert one.seen[1].sampling.max_tokens == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grammar": Grammar("regex", "(")}, "response_format: unclosed group"),
        ({"grammar": Grammar("regex", "("), "grammar_field": "text.format"}, "text.format: unclosed group"),
        ({}, "tools: unclosed group"),
    ],
)
@pytest.mark.parametrize("begun", [[], [Delta(text="{", tokens=1)]])
async def test_a_faulty_grammar_is_told_by_the_clients_name_for_it(
    tmp_path: Path, backend: Make, tier_of: Make, changes: dict[str, Any], message: str, begun: list[Delta]
) -> None:
    """At once, or when it proves to be too much in mid-answer."""
    script = [*begun, Rejected("grammar: unclosed group", "invalid")]
    gateway = Gateway(tmp_path, [tier_of("7b", backend("7b/0", script))])
    with pytest.raises(Rejected) as error:
        await gateway.say("Hi", **changes)
    told = as_api_error(error.value)
    assert (told.status, told.message, told.param) == (400, message, message.partition(":")[0])


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (None, "tools: Unknown format: regex"),
        (Grammar("json_schema", "{}"), "response_format: Unknown format: regex"),
        (
            Grammar("lark", "start: x"),
            "response_format: at 6(14): failed to compile JSON schema: Unknown format: regex",
        ),
    ],
)
async def test_places_in_a_grammar_are_told_to_whoever_has_written_it(
    tmp_path: Path, backend: Make, tier_of: Make, grammar: Grammar | None, message: str
) -> None:
    fault = "grammar: at 6(14): failed to compile JSON schema: Unknown format: regex"
    gateway = Gateway(tmp_path, [tier_of("7b", backend("7b/0", [Rejected(fault, "invalid")]))])
    with pytest.raises(Rejected) as error:
        await gateway.say("Hi", grammar=grammar)
    assert str(error.value) == message


async def test_names_and_aliases(gateway: Gateway) -> None:
    assert (await gateway.run("Hi", model="13b")).tier == "13b"
    assert (await gateway.run("Hi", model="big")).tier == "13b"
    assert (await gateway.run("Hi", model="gpt-4o")).tier == "7b"
    assert gateway.classifier.asked == ["Hi"]  # a tier that was named needs no assessment


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"model": "gpt-5"}, 404, "model_not_found"),
        ({"model": "13b", "tiers": ("7b",)}, 403, "model_not_allowed"),
        ({"max_tokens": 990}, 400, "context_length_exceeded"),
        ({"prompt": Prompt(text="x" * 1000), "endpoint": "completions"}, 400, "context_length_exceeded"),
        ({"session": "sess_unknown"}, 404, "session_not_found"),
        ({"session": "new", "prompt": Prompt(text="x")}, 400, None),
        ({"limits": Limits(tokens_per_minute=10)}, 429, "request_too_large"),
    ],
)
async def test_refusals_consume_nothing(
    gateway: Gateway, changes: dict[str, Any], status: int, code: str | None
) -> None:
    with pytest.raises(ApiError) as refused:
        await gateway.run("x" * 20, **changes)
    assert (refused.value.status, refused.value.code) == (status, code)
    assert gateway.limits.reserved == gateway.limits.settled == []


async def test_a_prompt_too_long_says_both_numbers(gateway: Gateway) -> None:
    with pytest.raises(
        ApiError, match=r"maximum context length is 1000 .* 1200 tokens for the prompt and 5 "
    ):
        await gateway.run("x" * 1200, max_tokens=5)


async def test_the_limit_of_requests(gateway: Gateway) -> None:
    limits = Limits(requests_per_minute=2)
    for left in ("1", "0"):
        answer = await gateway.run("Hi", limits=limits, id=f"req_{left}")
        assert answer.headers["x-ratelimit-remaining-requests"] == left
    with pytest.raises(ApiError) as refused:
        await gateway.run("Hi", limits=limits, id="req_3")
    assert refused.value.status == 429
    assert refused.value.code == "rate_limit_exceeded"
    assert 1 <= int(refused.value.headers["retry-after"]) <= 60


async def test_a_store_that_is_down_leaves_a_local_share(gateway: Gateway) -> None:
    gateway.limits.up = False
    limits = Limits(requests_per_minute=1)
    answer = await gateway.run("Hi", limits=limits)
    assert answer.headers["x-headrace-degraded"] == "limits"
    await answer.deltas.aclose()
    with pytest.raises(ApiError):
        await gateway.run("Hi", limits=limits, id="req_2")
    assert len(gateway.fallback.settled) == 1


async def test_money_is_reserved_at_worst_and_settled_at_the_price_of_who_answered(
    tmp_path: Path, backend: Make, tier_of: Make, whole_answer: Make
) -> None:
    cheap = tier_of("7b", backend("7b/0", whole_answer("a", "b", prompt_tokens=5, cached=4)))
    dear = tier_of("13b", backend("13b/0"))
    tiers = [
        replace(cheap, price=Price(input=1, cached=0.1, output=2)),
        replace(dear, price=Price(input=3, output=4)),
    ]
    gateway = Gateway(tmp_path, tiers)
    assert await gateway.say("Hello", max_tokens=7) == "ab"
    assert gateway.limits.money == [
        ("reserved", 1000 * (5 * 3 + 7 * 4)),
        ("settled", 1000 * (1 * 1 + 2 * 2) + 100 * 4),
    ]
    await gateway.sessions.close()


async def test_tiers_where_a_request_could_cost_too_much_are_left_out(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    tiers = [
        replace(tier_of(name, backend(f"{name}/0")), price=Price(output=price))
        for name, price in (("7b", 1.0), ("13b", 10.0))
    ]
    gateway = Gateway(tmp_path, tiers, good=(0.1, 0.9))
    answer = await gateway.run("Hi", max_tokens=10, max_request_price=100e-6)
    await answer.deltas.aclose()
    assert answer.tier == "13b"
    answer = await gateway.run("Hi", max_tokens=11, max_request_price=100e-6, id="req_2")
    await answer.deltas.aclose()
    assert answer.tier == "7b"
    assert gateway.limits.money[-2] == ("reserved", 11_000)
    with pytest.raises(
        ApiError, match=r"could cost 0\.000101; one request of this tenant may cost 0\.0001\."
    ) as told:
        await gateway.run("Hi", max_tokens=101, max_request_price=100e-6, id="req_3")
    assert (told.value.status, told.value.code, told.value.param) == (
        400,
        "request_too_expensive",
        "max_tokens",
    )
    with pytest.raises(ApiError):  # a tier that is named is no way around it
        await gateway.run("Hi", model="big", max_tokens=11, max_request_price=100e-6, id="req_4")
    await gateway.sessions.close()


async def test_a_used_up_budget_is_told_in_the_words_that_sdks_do_not_retry(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    tier = replace(tier_of("7b", backend("7b/0")), price=Price(output=1.0))
    gateway = Gateway(tmp_path, [tier])
    limits = Limits(budget=Budget(per_day=12e-6))
    answer = await gateway.run("Hi", limits=limits, max_tokens=10)
    assert answer.headers["x-ratelimit-remaining-budget-day"] == "0.000002"
    await answer.deltas.aclose()
    assert await gateway.say("Hi", limits=limits, max_tokens=10, id="req_2") == "Hello world"
    with pytest.raises(ApiError) as refused:
        await gateway.run("Hi", limits=limits, max_tokens=10, id="req_3")
    assert (refused.value.status, refused.value.code, refused.value.type) == (
        429,
        "insufficient_quota",
        "insufficient_quota",
    )
    assert refused.value.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.value.headers
    await gateway.sessions.close()


@pytest.mark.parametrize("on_outage", ["open", "closed"])
async def test_a_budget_that_nobody_can_look_up_fails_as_configured(
    gateway: Gateway, on_outage: Literal["open", "closed"]
) -> None:
    gateway.limits.up = False
    limits = Limits(budget=Budget(per_month=1.0, on_outage=on_outage))
    if on_outage == "open":
        assert await gateway.say("Hi", limits=limits) == "Hello world"
    else:
        with pytest.raises(ApiError) as refused:
            await gateway.run("Hi", limits=limits)
        assert (refused.value.status, refused.value.code) == (503, "budget_unknown")


async def test_when_every_attempt_fails_the_reservation_comes_back(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    tiers = [
        tier_of("7b", backend("7b/0", [Unavailable("gone")])),
        tier_of("13b", backend("13b/0", [Rejected("no")])),
    ]
    gateway = Gateway(tmp_path, tiers)
    with pytest.raises(Rejected):
        await gateway.run("Hi")
    assert gateway.limits.settled == [0]


async def test_failover_is_said(tmp_path: Path, backend: Make, tier_of: Make) -> None:
    tiers = [tier_of("7b", backend("7b/0", [Unavailable("gone")])), tier_of("13b", backend("13b/0"))]
    answer = await Gateway(tmp_path, tiers).run("Hi")
    assert answer.headers["x-headrace-tier"] == "13b"
    assert answer.headers["x-headrace-reason"].startswith("13b: failover from 7b (7b: p=0.90")


async def test_the_ledger_of_an_answer(tmp_path: Path, backend: Make, tier_of: Make) -> None:
    """Two attempts, and money beside what the largest tier would have cost."""
    seven, thirteen = backend("7b/0", [Unavailable("gone")]), backend("13b/0")
    tiers = [tier_of("7b", seven), tier_of("13b", thirteen, price=Price(input=2.0, output=10.0))]
    tiers.append(tier_of("70b", backend("70b/0"), price=Price(input=20.0, output=100.0)))
    gateway, ledger = Gateway(tmp_path, tiers), Ledger()
    await gateway.say("Hi", ledger=ledger)
    failed, answered = ledger.entries
    assert (failed.tier, failed.replica, failed.outcome) == ("7b", "7b/0", "engine_died")
    assert failed.first is None and failed.ended is not None and failed.cost == 0
    assert (answered.tier, answered.outcome) == ("13b", ANSWERED)
    assert answered.usage is not None and answered.usage.completion_tokens == 2
    assert answered.cost == pytest.approx((5 * 2 + 2 * 10) / 1e6)
    page = gateway.metrics.render().decode()
    assert 'headrace_cost_total{tenant="acme",tier="13b"} 3e-05' in page
    assert 'headrace_cost_largest_tier_total{tenant="acme",tier="13b"} 0.0003' in page


async def test_the_ledger_of_answers_that_did_not_end(
    gateway: Gateway, tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    cut = Ledger()
    answer = await gateway.run("Hi", ledger=cut)
    await answer.deltas.aclose()
    assert [(entry.outcome, entry.usage and entry.usage.completion_tokens) for entry in cut.entries] == [
        (ABORTED, 1)
    ]
    broken = Ledger()
    dying = backend("7b/0", [Delta(text="Hel", tokens=1), Unavailable("died", "upstream_eof")])
    with pytest.raises(Unavailable):
        await Gateway(tmp_path / "other", [tier_of("7b", dying)]).say("Hi", ledger=broken)
    (entry,) = broken.entries
    assert entry.outcome == "upstream_eof"
    assert entry.first is not None and entry.ended is not None and entry.first <= entry.ended
    assert entry.usage is not None and entry.usage.completion_tokens == 1


async def test_no_tier_answers(tmp_path: Path, backend: Make, tier_of: Make) -> None:
    gateway = Gateway(tmp_path, [tier_of("7b", backend("7b/0", available=False))])
    with pytest.raises(ApiError) as refused:
        await gateway.run("Hi")
    assert (refused.value.status, refused.value.code) == (503, "no_tier_available")
    assert refused.value.headers["retry-after"]
    assert gateway.limits.settled == [0]


async def test_a_request_waits_for_an_engine_that_is_being_started_again(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    dead = backend("7b/0", available=False, recovering=True)
    gateway = Gateway(tmp_path, [tier_of("7b", dead)])
    waiting = asyncio.ensure_future(gateway.say("Hi", model="7b"))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await dead.start()
    assert await waiting == "Hello world"


async def test_it_does_not_wait_for_ever(tmp_path: Path, backend: Make, tier_of: Make) -> None:
    gateway = Gateway(tmp_path, [tier_of("7b", backend("7b/0", available=False, recovering=True))])
    with pytest.raises(ApiError) as refused:
        await gateway.say("Hi", timeout=0.2)
    assert refused.value.status == 503


async def test_steps_in_a_trace_that_nobody_gets_are_refused(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    gateway = Gateway(tmp_path, [tier_of("7b", backend("7b/0"))])
    with pytest.raises(ApiError, match="x-headrace-trace: this gateway exports no traces") as refused:
        await gateway.say("Hi", steps=True)
    assert (refused.value.status, gateway.limits.reserved) == (400, [])


async def test_another_tier_spares_the_wait(tmp_path: Path, backend: Make, tier_of: Make) -> None:
    dead = backend("7b/0", available=False, recovering=True)
    gateway = Gateway(tmp_path, [tier_of("7b", dead), tier_of("13b", backend("13b/0"))])
    assert (await gateway.run("Hi")).tier == "13b"


async def test_a_hopeless_prompt_stays_small_and_a_hard_one_climbs(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    tiers = [tier_of("7b", backend("7b/0")), tier_of("13b", backend("13b/0"))]
    assert (await Gateway(tmp_path, tiers, good=(0.1, 0.12)).run("Hi")).tier == "7b"
    assert (await Gateway(tmp_path, tiers, good=(0.1, 0.4)).run("Hi")).tier == "13b"


async def test_the_replica_that_holds_the_prefix_is_taken(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    gateway = Gateway(tmp_path, [tier_of("7b", backend("7b/0"), backend("7b/1"), block_size=4)])
    ids = [ord(character) for character in "Who are you?"]
    gateway.affinity.snapshot("7b/1", 1, block_keys(SALT, ids[:8], 4))
    gateway.affinity.snapshot("7b/0", 1, block_keys(b"another tenant's salt", ids, 4))
    answer = await gateway.run("Who are you?")
    assert answer.headers["x-headrace-reason"].endswith("8 of 12 prompt tokens cached")
    await answer.deltas.aclose()
    assert gateway.dispatcher.cards()[0].ready


async def test_a_tool_loop_keeps_its_tier_and_is_not_judged_again(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    tiers = [tier_of("7b", backend("7b/0")), tier_of("13b", backend("13b/0"))]
    gateway = Gateway(tmp_path, tiers, good=(0.1, 0.9))
    ask, call = ChatMessage("user", "The weather?"), ChatMessage("assistant", "(a call)")
    assert (await gateway.run(prompt=Prompt(messages=(ask,)))).tier == "13b"
    gateway.classifier.good = {"7b": 0.9, "13b": 0.9}
    loop = await gateway.run(prompt=Prompt(messages=(ask, call, ChatMessage("tool", "21 degrees"))))
    assert (loop.tier, loop.headers["x-headrace-reason"].split(",")[0]) == ("13b", "13b: keeps its tool loop")
    assert gateway.classifier.asked == ["The weather?"]
    assert 'headrace_route_decisions_total{reason="pinned",tier="13b"} 1.0' in gateway.scrape()
    spoken = await gateway.run(
        prompt=Prompt(messages=(ask, call, ChatMessage("tool", "21 degrees"), ChatMessage("user", "Thanks")))
    )
    assert spoken.tier == "7b"


async def test_shadow_policies_are_counted_and_logged(
    tmp_path: Path, backend: Make, tier_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    tiers = [tier_of("7b", backend("7b/0")), tier_of("13b", backend("13b/0"))]
    gateway = Gateway(tmp_path, tiers, good=(0.6, 0.9), shadows={"frugal": Policy(floor=0.5)})
    with caplog.at_level("INFO", logger="gateway.dispatch"):
        assert (await gateway.run("Hi")).tier == "13b"
        gateway.classifier.good = {"7b": 0.9, "13b": 0.9}
        assert (await gateway.run("Hi")).tier == "7b"
    assert 'headrace_shadow_decisions_total{agrees="no",policy="frugal"} 1.0' in gateway.scrape()
    assert 'headrace_shadow_decisions_total{agrees="yes",policy="frugal"} 1.0' in gateway.scrape()
    assert caplog.messages == ["shadow policy frugal: request req_1 to 7b, not to 13b"]


async def test_a_long_prompt_is_judged_beside_the_event_loop(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    gateway = Gateway(tmp_path, [tier_of("7b", backend("7b/0", context_length=9000))])
    threads: list[int] = []
    judge = gateway.classifier.assess

    def assess(text: str) -> Assessment:
        threads.append(threading.get_ident())
        return judge(text)

    gateway.classifier.assess = assess  # type: ignore[method-assign]
    await gateway.say("Hi")
    await gateway.say("x" * 5000, limits=Limits())
    assert threads[0] == threading.get_ident() != threads[1]


async def test_a_session_grows(gateway: Gateway) -> None:
    first = await gateway.run("One", session="new")
    async with aclosing(first.deltas):
        async for _ in first.deltas:
            pass
    assert first.session is not None
    assert first.headers["x-session-id"] == first.session
    await gateway.say("Two", session=first.session)
    said = [("user", "One", False), ("assistant", "Hello world", False)]
    assert await gateway.history(first.session) == [*said, ("user", "Two", False), said[1]]
    page = gateway.metrics.render().decode()
    assert 'headrace_sessions_total{event="opened"} 1.0' in page
    assert 'headrace_sessions_total{event="recalled"} 1.0' in page


async def test_an_aborted_answer_is_remembered_as_partial(gateway: Gateway) -> None:
    answer = await gateway.run("One", session="new")
    await anext(aiter(answer.deltas))
    await answer.deltas.aclose()
    assert await gateway.history(str(answer.session)) == [
        ("user", "One", False),
        ("assistant", "Hello", True),
    ]
    assert gateway.limits.settled == [3 + 1]


async def test_two_turns_at_once_lose_none(gateway: Gateway) -> None:
    opened = await gateway.run("One", session="new")
    await opened.deltas.aclose()
    await asyncio.gather(
        *(gateway.say(f"Turn {n}", session=opened.session, id=f"req_{n}") for n in range(2, 5))
    )
    said = [content for _, content, _ in await gateway.history(str(opened.session))]
    assert {"Turn 2", "Turn 3", "Turn 4"} <= set(said)
    assert said.count("Hello world") == 3


async def test_a_long_history_loses_its_oldest_turns(tmp_path: Path, backend: Make, tier_of: Make) -> None:
    one = backend("7b/0", context_length=100)
    gateway = Gateway(tmp_path, [tier_of("7b", one)])
    opened = await gateway.run("a" * 30, session="new", max_tokens=5)
    await opened.deltas.aclose()
    for letter in "bcd":
        await gateway.say(letter * 30, session=opened.session, max_tokens=5)
    asked = "".join(message.content for message in one.seen[-1].prompt.messages)
    assert asked.endswith("d" * 30)
    assert "a" not in asked
    assert len(asked) <= 95
    stored = [content for _, content, _ in await gateway.history(str(opened.session))]
    assert "a" * 30 in stored  # dropped from the prompt, not from the session


async def test_an_answer_that_nobody_reads_is_settled_all_the_same(gateway: Gateway) -> None:
    answer = await gateway.run("Hi")
    await answer.deltas.aclose()
    await answer.deltas.aclose()
    assert gateway.limits.settled == [2 + 1]
    with pytest.raises(StopAsyncIteration):
        await anext(aiter(answer.deltas))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    failing=st.sampled_from([None, Unavailable("gone"), Rejected("no")]),
    pieces=st.integers(0, 4),
    cancelled_after=st.integers(0, 30),
)
async def test_whatever_happens_it_is_settled_once(
    tmp_path: Path, backend: Make, tier_of: Make, whole_answer: Make,
    failing: BackendError | None, pieces: int, cancelled_after: int,
) -> None:  # fmt: skip
    """A cancellation at any moment, a failure at any delta: one settlement, nothing in flight, no place kept."""
    script = [
        *(Delta(text="x", tokens=1) for _ in range(pieces)),
        *([failing] if failing else whole_answer("end")),
    ]
    one = backend("7b/0", script)
    gateway = Gateway(tmp_path, [tier_of("7b", one)])
    limits = Limits(parallel=1, tokens_per_minute=1000)
    work = asyncio.ensure_future(gateway.say("Hi", limits=limits))
    for _ in range(cancelled_after):
        await asyncio.sleep(0)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(gateway.limits.settled) == len(gateway.limits.reserved)
    assert one.in_flight == 0
    assert one.opened == one.closed
    await gateway.limits.reserve("acme", limits, "next", NOTHING)  # the place is free
    gateway.limits.check()
