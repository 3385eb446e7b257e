"""When drafting is worth it, by tables: acceptance, costs, and what a gate makes of them over time."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engine.speculation.account import ALLOWANCE, OPENING, OVERDRAFT, Account
from backends.engine.speculation.account import MOST as RICH
from backends.engine.speculation.gate import (
    EVIDENCE,
    HOPED,
    LATEST,
    PROBES,
    RUNGS,
    SOONEST,
    Gate,
    choose,
    expected_tokens,
    gain,
)

Cost = Callable[[int], float]
MOST = 16


def free(drafted: int) -> float:
    """A device that verifies many rows for what one costs."""
    return 1.0


def linear(each: float) -> Cost:
    return lambda drafted: 1 + each * drafted


def steep(drafted: int) -> float:
    """llama.cpp on a CPU: four rows cost as much as four single steps, or nearly."""
    return drafted + 1.0


@pytest.mark.parametrize(
    ("acceptance", "drafted", "tokens"),
    [(0.0, 4, 1.0), (0.5, 1, 1.5), (0.5, 2, 1.75), (0.8, 3, 2.952), (1.0, 4, 5.0), (0.9, 0, 1.0)],
)
def test_expected_tokens(acceptance: float, drafted: int, tokens: float) -> None:
    assert expected_tokens(acceptance, drafted) == pytest.approx(tokens)
    assert expected_tokens(acceptance, drafted) == pytest.approx(
        sum(acceptance**place for place in range(drafted + 1))
    )


@pytest.mark.parametrize(
    ("acceptance", "cost", "current", "most", "chosen"),
    [
        (0.9, free, 0, MOST, 16),
        (0.9, free, 0, 4, 4),
        (0.9, free, 0, 0, 0),
        (0.91, steep, 0, MOST, 0),  # nine of ten accepted, and still a loss
        (0.91, steep, 3, MOST, 0),
        (0.9, linear(0.1), 0, MOST, 8),
        (0.6, linear(0.1), 0, MOST, 3),
        (0.3, linear(0.1), 0, MOST, 1),
        (0.1, linear(0.1), 0, MOST, 0),
        (0.13, linear(0.1), 1, MOST, 1),  # not enough to open, and no reason to close
        (0.13, linear(0.1), 0, MOST, 0),
        (0.05, linear(0.1), 1, MOST, 0),
        (0.9, linear(0.1), 12, MOST, 12),  # hardly less than with 8
        (0.9, linear(0.1), 12, 3, 3),  # more than may be
    ],
)
def test_choice(acceptance: float, cost: Cost, current: int, most: int, chosen: int) -> None:
    assert choose(acceptance, cost, current, most) == chosen


@pytest.mark.parametrize("acceptance", [0.1, 0.4, 0.7, 0.95])
@pytest.mark.parametrize("each", [0.02, 0.2, 0.6, 1.5])
def test_no_choice_is_expected_to_lose_or_is_far_from_the_best(acceptance: float, each: float) -> None:
    cost = linear(each)
    chosen = choose(acceptance, cost, 0, MOST)
    best = max(gain(acceptance, rung, cost) for rung in RUNGS)
    assert gain(acceptance, chosen, cost) >= max(1.0, best / 1.05)


def feed(gate: Gate, cost: Cost, accepts: Callable[[int], int], steps: int) -> list[int]:
    """A sequence that is decoded: what is drafted in each step."""
    drafted = []
    tried = max(PROBES)
    for _ in range(steps):
        gate.account.allow()
        wanted = gate.ask()
        drafted.append(wanted)
        if wanted:
            gate.count(wanted, accepts(wanted))
            tried = max(tried, wanted)
            gate.decide(cost, tried)
    return drafted


def test_it_probes_then_climbs_as_far_as_it_pays() -> None:
    gate = Gate(MOST, Account())
    drafted = feed(gate, linear(0.05), lambda wanted: wanted, 60)
    assert drafted[:EVIDENCE] == [2, 4, 2, 4]
    climbed = [count for count in drafted[EVIDENCE:]]
    assert climbed == sorted(climbed) and climbed[0] <= 6 and climbed[-1] == 16  # a rung at a time
    assert gate.reason == "pays" and gate.acceptance > 0.9
    assert gate.gain == gain(gate.acceptance, 16, linear(0.05))


def test_it_never_opens_where_verifying_costs_too_much() -> None:
    gate = Gate(MOST, Account())
    drafted = feed(gate, steep, lambda wanted: wanted, 2000)
    assert gate.tokens == 0 and gate.reason == "unprofitable" and gate.gain == 1.0
    assert sum(count > 0 for count in drafted) < EVIDENCE + 2000 / SOONEST + 1


def test_without_luck_it_probes_less_and_less() -> None:
    gate = Gate(MOST, Account())
    drafted = feed(gate, linear(0.1), lambda wanted: 0, 10_000)
    probes = [step for step, count in enumerate(drafted) if count]
    gaps = [after - before for before, after in zip(probes, probes[1:], strict=False)]
    assert gaps[: EVIDENCE - 1] == [1] * (EVIDENCE - 1)
    assert gaps[EVIDENCE - 1 :] == [64, 128, 256, 512, 1024] + [LATEST] * (len(gaps) - EVIDENCE - 4)
    assert set(drafted) <= {0, *PROBES}


def test_it_closes_when_luck_ends_and_opens_when_it_returns() -> None:
    gate = Gate(8, Account())
    feed(gate, linear(0.1), lambda wanted: wanted, 100)
    assert gate.tokens == 8
    feed(gate, linear(0.1), lambda wanted: 0, 200)
    assert gate.tokens == 0 and gate.reason == "unprofitable"
    lucky = feed(gate, linear(0.1), lambda wanted: wanted, 2 * LATEST)
    assert gate.tokens == 8
    assert lucky.index(8) < LATEST + 64


def asked(gate: Gate, price: float, left: float = 1000.0, times: int = 1) -> list[int]:
    wanted = []
    for _ in range(times):
        gate.account.allow()
        wanted.append(gate.ask(lambda: price, left))
    return wanted


def test_a_closed_one_has_no_more_read_than_its_account_has_saved_up_for() -> None:
    gate = Gate(MOST, Account())
    assert asked(gate, OPENING + 1) == [0]
    assert asked(gate, OPENING - 1) == [PROBES[0]]
    gate.pay(OPENING + 1)
    waited = asked(gate, 0.0, times=int(1.2 / ALLOWANCE))
    assert waited.index(PROBES[0]) == pytest.approx(1 / ALLOWANCE, abs=4)
    assert sum(asked(gate, RICH + 1, times=int(3 * RICH / ALLOWANCE))) == 0
    assert gate.account.balance == RICH


def test_an_open_one_has_read_what_the_rest_of_the_answer_earns_twice() -> None:
    gate = Gate(MOST, Account())
    feed(gate, linear(0.1), lambda wanted: wanted, 50)
    saved = HOPED * (1 - 1 / gate.gain)
    assert asked(gate, 99 * saved, left=100) == [gate.tokens]
    assert asked(gate, 101 * saved, left=100) == [0]


def test_what_needs_no_reading_is_not_even_looked_at_while_it_waits() -> None:
    gate = Gate(MOST, Account())
    feed(gate, linear(0.1), lambda wanted: 0, EVIDENCE)

    def price() -> float:
        raise AssertionError("it waits")

    assert [gate.ask(price) for _ in range(SOONEST - 1)] == [0] * (SOONEST - 1)


def test_none_is_opened_while_what_another_one_has_lost_is_owed() -> None:
    account = Account()
    gate = Gate(MOST, account)
    for _ in range(EVIDENCE + 1):
        gate.count(4, 4)
    account.earn(-100)
    gate.decide(linear(0.1), 4)
    assert gate.tokens == 0
    account.earn(200)
    gate.decide(linear(0.1), 4)
    assert gate.tokens > 0


def test_one_that_had_better_not_been_opened_waits_longer_each_time() -> None:
    """Lucky while it probes, and never again once it is open."""
    gate, waits = Gate(4, Account()), []
    for _ in range(4):
        drafted = feed(gate, linear(0.5), lambda wanted: wanted, 1)
        while not gate.tokens:
            drafted += feed(gate, linear(0.5), lambda wanted: wanted, 1)
        waits.append(drafted.index(next(filter(None, drafted))))
        while gate.tokens:
            feed(gate, linear(0.5), lambda wanted: 0, 1)
    assert waits[0] == 0 and waits[1] >= SOONEST - 1
    assert all(after > before for before, after in zip(waits, waits[1:], strict=False))


@dataclass
class Way:
    """One way to draft, in steps of the larger model: `drafting` a token, and reading one in a twentieth of that;
    `verifying` one more token in a step. `speaks`: how often it has anything to say."""

    acceptance: float
    drafting: float
    verifying: float
    speaks: float = 1.0

    @property
    def reading(self) -> float:
        return self.drafting / 20

    def cost(self, drafted: int) -> float:
        return 1 + drafted * (self.drafting + self.verifying)


def answer_all(ways: Sequence[Way], prompt: int, answers: int, seed: int, tokens: int = 128) -> float:
    """Times as many tokens in the same time as without drafts, one answer after another; the ways share an account,
    and are asked in turn."""
    noise, account, seconds = random.Random(seed), Account(), 0.0
    gates = [(way, Gate(8, account)) for way in ways]
    tried = dict.fromkeys(map(id, ways), 0)
    for _ in range(answers):
        lag, said = dict.fromkeys(map(id, ways), prompt), 1
        while said < tokens:
            account.allow()
            taken, draft = 1.0, None
            for way, gate in gates:
                price = way.reading * lag[id(way)]
                wanted = min(gate.ask(lambda: price, tokens - said), tokens - 1 - said)  # noqa: B023 (asked at once)
                if not wanted:
                    continue
                if price:
                    read = min(lag[id(way)], 64)
                    gate.pay(way.reading * read)
                    taken, lag[id(way)] = taken + way.reading * read, lag[id(way)] - read
                if draft is None and not way.reading * lag[id(way)] and noise.random() < way.speaks:
                    draft = way, gate, wanted
            accepted = 0
            if draft is not None:
                way, gate, wanted = draft
                accepted = next((at for at in range(wanted) if noise.random() >= way.acceptance), wanted)
                taken += way.cost(wanted) - 1
                tried[id(way)] = max(tried[id(way)], wanted)
                gate.count(wanted, accepted)
                gate.decide(way.cost, tried[id(way)])
            seconds, said = seconds + taken, said + 1 + accepted
            for way, _ in gates:
                lag[id(way)] += 0 if draft is not None and draft[0] is way else 1 + accepted
    return (tokens - 1) * answers / seconds


@pytest.mark.parametrize("drafting", [0.0, 0.2, 0.4])
@pytest.mark.parametrize("verifying", [0.02, 0.15, 0.4])
@pytest.mark.parametrize("prompt", [60, 250, 1200])
def test_whatever_is_accepted_next_to_nothing_is_lost(drafting: float, verifying: float, prompt: int) -> None:
    for acceptance in (0.0, 0.3, 0.5, 0.7, 1.0):
        way = Way(acceptance, drafting, verifying)
        assert answer_all([way], prompt, 30, seed=1) > 0.98
        assert min(answer_all([way], prompt, 2, seed) for seed in range(4)) > 0.97


@settings(max_examples=30)
@given(st.floats(0.01, 1.0), st.floats(0, 3), st.floats(0, 1), st.randoms(use_true_random=False))
def test_no_luck_loses_more_than_the_account_allows(
    each: float, price: float, fickle: float, luck: random.Random
) -> None:
    """Two gates that are mostly right while they are shut and wrong once they are open, and have to read every time."""
    cost, account, lost = linear(each), Account(), 0.0
    gates = Gate(MOST, account), Gate(MOST, account)
    worst = 2 * (price + cost(MOST) - 1)  # of a step
    for step in range(400):
        account.allow()
        for gate in gates:
            if wanted := gate.ask(lambda: price):
                gate.pay(price)
                right = luck.random() < fickle if gate.tokens else luck.random() >= fickle
                gate.count(wanted, wanted * right)
                gate.decide(cost, MOST)
                lost += price + cost(wanted) - 1 - wanted * right
        assert lost <= OPENING + OVERDRAFT + ALLOWANCE * (step + 1) + worst
        assert account.balance >= -OVERDRAFT - worst


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("speaks", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("tokens", [30, 128])
def test_two_ways_lose_no_more_than_one(acceptance: float, speaks: float, tokens: int) -> None:
    """Short answers too, for each of which the prompt has to be read."""
    for verifying in (0.05, 0.15, 0.4):
        ways = Way(acceptance, 0.0, verifying, speaks), Way(acceptance, 0.35, verifying)
        assert min(answer_all(ways, 60, 30, seed, tokens) for seed in range(3)) > 0.975


@pytest.mark.parametrize(
    ("acceptance", "drafting", "verifying", "prompt", "least"),
    [
        (0.9, 0.0, 0.15, 60, 2.3),
        (0.6, 0.0, 0.15, 60, 1.3),
        (0.9, 0.33, 0.05, 200, 1.3),
        (0.9, 0.33, 0.1, 600, 1.0),
    ],
)
def test_what_pays_is_found(
    acceptance: float, drafting: float, verifying: float, prompt: int, least: float
) -> None:
    way = Way(acceptance, drafting, verifying)
    assert min(answer_all([way], prompt, 30, seed) for seed in range(5)) > least


def test_what_comes_after_a_wrong_token_was_not_on_trial() -> None:
    gate = Gate(MOST, Account())
    for _ in range(200):
        gate.count(8, 1)
    assert gate.acceptance == pytest.approx(0.5)


def test_no_draft_is_longer_than_it_may_be() -> None:
    assert set(feed(Gate(1, Account()), free, lambda wanted: wanted, 50)) == {1}
    assert max(feed(Gate(3, Account()), free, lambda wanted: wanted, 50)) == 3
