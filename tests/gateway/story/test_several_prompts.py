"""Several prompts in one call: one reservation, one tier, and every part of it settled however it ends."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from backends.backend import Unavailable
from backends.infill import Infill
from backends.prompt import Prompt
from backends.tokenizer import Tokenizer
from classifier import Assessment
from gateway.config import Limits, Price, Server, Telemetry, Tenant
from gateway.desk import Desk
from gateway.dispatch import Dispatcher
from gateway.errors import ApiError
from gateway.judges import Judges
from gateway.limits import Amount, Reservation
from gateway.limits_memory import MemoryLimits
from gateway.metering import Meter
from gateway.metrics import Metrics
from gateway.recall import Memory
from gateway.request import Request
from gateway.several import as_one
from gateway.telemetry import Traces
from gateway.tiers import Tier
from prefixcache.affinity import Affinity
from sessions.retention import always
from sessions.sqlite import SqliteSessions

Make = Callable[..., Any]
TENANT = Tenant(name="acme", limits=Limits(requests_per_minute=1, tokens_per_minute=1000, parallel=1))


class WatchedLimits(MemoryLimits):
    """Real limits that also write down what is taken and given back."""

    def __init__(self) -> None:
        super().__init__()
        self.reserved: list[Amount] = []
        self.settled: list[Amount | None] = []

    async def reserve(self, tenant: str, limits: Limits, lease: str, amount: Amount) -> Reservation:
        self.reserved.append(amount)
        return await super().reserve(tenant, limits, lease, amount)

    async def settle(self, reservation: Reservation, limits: Limits, used: Amount | None) -> None:
        self.settled.append(used)
        await super().settle(reservation, limits, used)


class KnownTokenizer(Tokenizer):
    """Three letters, and gaps."""

    def __init__(self) -> None:
        self._vocabulary = [b"a", b"b", b"c"]
        self.infill = Infill(prefix=5, suffix=6, middle=7, ends=(5, 6, 7, 8), names=())

    @property
    def family(self) -> str:
        return "letters"

    async def encode(self, prompt: Prompt) -> list[int]:
        return list(prompt.ids or (0, 1))


@pytest.fixture
def limits() -> WatchedLimits:
    return WatchedLimits()


@pytest.fixture
async def make(tmp_path: Path, limits: WatchedLimits) -> AsyncIterator[Make]:
    """A dispatcher over tiers. It judges a text by its length: what is longer needs the larger tier."""
    sessions = SqliteSessions(tmp_path / "sessions.sqlite", always(60.0))

    def dispatcher(*tiers: Tier) -> Dispatcher:
        metrics = Metrics([tier.name for tier in tiers], {}, ["acme"])
        return Dispatcher(
            tiers=tiers,
            aliases={},
            server=Server(default_max_tokens=50),
            meter=Meter(limits, MemoryLimits(), metrics),
            memory=Memory(sessions, metrics),
            assess=lambda text: Assessment(
                task="qa", good={"7b": 0.9 if len(text) < 5 else 0.1, "13b": 0.9}, seconds=0.0
            ),
            desk=Desk([], {}, {}),
            affinity=Affinity(),
            salts={"acme": b"salt"},
            judges=Judges.none(*(tier.name for tier in tiers)),
            metrics=metrics,
            traces=Traces(Telemetry()),
        )

    yield dispatcher
    await sessions.close()


def requests(*prompts: Prompt, **changes: Any) -> list[Request]:
    fields: Any = {"endpoint": "completions", "tenant": TENANT, "model": "auto", "max_tokens": 10, **changes}
    return [
        Request(
            id=f"r{n}",
            prompt=prompt,
            prompt_field=f"prompt[{n}]",
            session=None,
            timeout=5.0,
            priority=0,
            **fields,
        )
        for n, prompt in enumerate(prompts)
    ]


def texts(*given: str) -> list[Prompt]:
    return [Prompt(text=text) for text in given]


async def test_one_request_of_the_tenant_on_one_tier(
    make: Make, limits: WatchedLimits, backend: Make, tier_of: Make
) -> None:
    small, large = backend("7b/0"), backend("13b/0")
    price = Price(input=1.0, output=1.0)
    dispatcher = make(tier_of("7b", small), tier_of("13b", large, price=price))
    answer = as_one(await dispatcher.run_all(requests(*texts("easy", "a hard one"))), 1)
    assert (answer.tier, small.opened, large.opened) == ("13b", 0, 2)
    async with aclosing(answer.deltas) as deltas:
        told = [delta async for delta in deltas]
    for index in (0, 1):
        assert "".join(delta.text for delta in told if delta.index == index) == "Hello world"
    assert told[-1].usage is not None and told[-1].usage.completion_tokens == 4
    assert limits.reserved == [Amount(tokens=4 + 10 + 10 + 10, input=4 + 10, output=10 + 10, money=34_000)]
    assert limits.settled == [Amount(tokens=2 * (5 + 2), input=10, output=4, money=14_000)]


async def test_a_failure_of_one_ends_and_settles_all(
    make: Make, limits: WatchedLimits, backend: Make, tier_of: Make
) -> None:
    works = [*backend("x").scripts[0]]
    one = backend("7b/0", works, [Unavailable("gone", "engine_died")], works, [Unavailable("gone")])
    dispatcher = make(tier_of("7b", one))
    with pytest.raises(Unavailable):
        await dispatcher.run_all(requests(*texts("a", "b")))
    assert one.in_flight == 0
    [settled] = limits.settled
    assert settled is not None and settled.tokens <= 7
    # The only place for a request in parallel is free again.
    assert (await limits.reserve("acme", Limits(parallel=1), "x", Amount())).lease == "x"


async def test_prompts_that_no_tier_takes_now_are_no_request(
    make: Make, limits: WatchedLimits, backend: Make, tier_of: Make
) -> None:
    one = backend("7b/0", available=False)
    dispatcher = make(tier_of("7b", one))
    for _ in range(3):
        with pytest.raises(ApiError) as refused:
            await dispatcher.run_all(requests(*texts("a", "b")))
        assert refused.value.code == "no_tier_available"
    assert limits.settled == [None] * 3
    one.available = True
    for answer in await dispatcher.run_all(requests(*texts("a", "b"))):  # the only one of this minute
        await answer.deltas.aclose()


async def test_a_prompt_that_cannot_run_is_named_and_takes_nothing(
    make: Make, limits: WatchedLimits, backend: Make, tier_of: Make
) -> None:
    dispatcher = make(tier_of("7b", backend("7b/0", context_length=40)))
    with pytest.raises(ApiError) as refused:
        await dispatcher.run_all(requests(*texts("fits", "x" * 50)))
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "prompt[1]")
    assert limits.reserved == []


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"logprobs": 4}, (10 + 10) * 5),
        ({"logprobs": 0, "prompt_logprobs": True}, 10 + 4 + 10 + 10),
        ({"logprobs": 4, "prompt_logprobs": True, "n": 2}, (20 + 4 + 20 + 10) * 5),
        ({}, 0),
    ],
)
async def test_log_probabilities_of_a_call_are_no_more_than_memory_is_for(
    make: Make, limits: WatchedLimits, backend: Make, tier_of: Make, monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any], asked: int,
) -> None:  # fmt: skip
    """They are all kept until the last prompt's are there."""
    dispatcher = make(tier_of("7b", backend("7b/0")))
    work = requests(*texts("easy", "a hard one"), **options)
    monkeypatch.setattr("gateway.provision.MAX_SCORES", asked - 1 if asked else 0)
    if asked:
        with pytest.raises(ApiError, match=f"{asked} log-probabilities") as refused:
            await dispatcher.run_all(work)
        assert (refused.value.status, refused.value.param, limits.reserved) == (400, "logprobs", [])
        monkeypatch.setattr("gateway.provision.MAX_SCORES", asked)
    for answer in await dispatcher.run_all(work):
        await answer.deltas.aclose()


async def test_the_whole_call_costs_no_more_than_the_tenant_allows(
    make: Make, backend: Make, tier_of: Make
) -> None:
    """Two prompts of 20 tokens: 40 millionths of the large tier's price, 4 of the small one's."""
    prices = Price(input=0.1, output=0.1), Price(input=1.0, output=1.0)
    dispatcher = make(
        *(tier_of(n, backend(f"{n}/0"), price=p) for n, p in zip(("7b", "13b"), prices, strict=True))
    )
    for allowed, tier in ((1.0, "13b"), (30e-6, "7b")):
        tenant = Tenant(name="acme", max_request_price=allowed)
        first, second = await dispatcher.run_all(requests(*texts("0123456789", "9876543210"), tenant=tenant))
        assert first.tier == second.tier == tier
        await first.deltas.aclose()
        await second.deltas.aclose()
    with pytest.raises(ApiError) as refused:
        await dispatcher.run_all(
            requests(*texts("0123456789"), tenant=Tenant(name="acme", max_request_price=1e-6))
        )
    assert refused.value.status == 400


async def test_a_prompt_that_fits_only_where_the_call_is_too_dear_is_refused(
    make: Make, limits: WatchedLimits, backend: Make, tier_of: Make
) -> None:
    """The other one would have been affordable alone."""
    small, large = backend("7b/0", context_length=30), backend("13b/0")
    dispatcher = make(
        tier_of("7b", small, price=Price(output=1.0)), tier_of("13b", large, price=Price(output=10.0))
    )
    tenant = Tenant(name="acme", max_request_price=100e-6)
    with pytest.raises(
        ApiError, match=r"could cost 0\.0002; one request of this tenant may cost 0\.0001"
    ) as told:
        await dispatcher.run_all(requests(*texts("easy", "x" * 50), tenant=tenant))
    assert (told.value.status, told.value.code) == (400, "request_too_expensive")
    assert limits.reserved == []


class TestIds:
    async def test_they_need_one_vocabulary(self, make: Make, backend: Make, tier_of: Make) -> None:
        other = backend("13b/0", tokenizer=None)
        dispatcher = make(tier_of("7b", backend("7b/0")), tier_of("13b", other))
        with pytest.raises(ApiError) as refused:
            await dispatcher.run_all(requests(Prompt(ids=(1, 2))))
        assert (refused.value.status, refused.value.param) == (400, "prompt[0]")
        assert refused.value.message.endswith(
            "7b and 13b, whose tokenizers differ; name one tier as the model"
        )
        [answer] = await dispatcher.run_all(requests(Prompt(ids=(1, 2)), model="13b"))
        await answer.deltas.aclose()
        assert other.seen[0].prompt.ids == (1, 2)

    async def test_one_outside_it_is_named(self, make: Make, backend: Make, tier_of: Make) -> None:
        dispatcher = make(tier_of("7b", backend("7b/0", tokenizer=KnownTokenizer())))
        with pytest.raises(ApiError) as refused:
            await dispatcher.run_all(requests(Prompt(ids=(1,)), Prompt(ids=(1, 2, 3))))
        assert (refused.value.status, refused.value.param) == (400, "prompt[1][2]")
        assert refused.value.message == "prompt[1][2]: 3 is outside the vocabulary of 3"

    async def test_they_are_spelled_out_for_an_echo_and_for_the_classifier(
        self, make: Make, backend: Make, tier_of: Make
    ) -> None:
        dispatcher = make(tier_of("7b", backend("7b/0", tokenizer=KnownTokenizer())))
        answer = as_one(await dispatcher.run_all(requests(Prompt(ids=(1, 0)), Prompt(ids=(1, 1)))), 1)
        await answer.deltas.aclose()
        assert answer.spelled == ("ba", "bb")


class TestGaps:
    async def test_only_who_was_taught_is_asked(self, make: Make, backend: Make, tier_of: Make) -> None:
        coder = backend("13b/0", tokenizer=KnownTokenizer())
        dispatcher = make(tier_of("7b", backend("7b/0", tokenizer=None)), tier_of("13b", coder))
        gap = Prompt(text="a", suffix="b")
        [answer] = await dispatcher.run_all(requests(gap, stop_token_ids=(9,)))
        await answer.deltas.aclose()
        assert answer.tier == "13b"
        assert coder.seen[0].sampling.stop_token_ids == (9, 5, 6, 7, 8)
        [answer] = await dispatcher.run_all(requests(gap, ignore_eos=True, tenant=Tenant(name="acme")))
        await answer.deltas.aclose()
        assert coder.seen[1].sampling.stop_token_ids == ()

    async def test_who_cannot_is_named(self, make: Make, backend: Make, tier_of: Make) -> None:
        dispatcher = make(tier_of("7b", backend("7b/0", tokenizer=None)))
        with pytest.raises(ApiError) as refused:
            await dispatcher.run_all(requests(Prompt(text="a", suffix="b")))
        assert (refused.value.status, refused.value.param) == (400, "suffix")
        assert refused.value.message == "suffix: no model of 7b is known to fill gaps"
