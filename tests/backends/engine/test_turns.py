"""Turns among tenants: tokens come out as the weights say, whatever the tenants do."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from backends.engine.turns import Turns


def turns(**weights: float) -> Turns:
    made = Turns(64)
    for tenant, weight in reversed(weights.items()):
        made.enter(tenant, weight)
    return made


def use(made: Turns, cost: Callable[[str], int], contenders: set[str], total: int = 100_000) -> Counter[str]:
    """What each gets of so many tokens, when every turn costs what `cost` says."""
    got: Counter[str] = Counter()
    while got.total() < total:
        tenant = made.next(contenders)
        tokens = cost(tenant)
        made.charge(tenant, tokens)
        got[tenant] += tokens
    return got


@pytest.mark.parametrize("costs", [{"a": 1, "b": 1}, {"a": 5000, "b": 10}, {"a": 3, "b": 700}])
def test_tokens_count_not_requests(costs: dict[str, int]) -> None:
    got = use(turns(a=1, b=1), costs.__getitem__, {"a", "b"})
    assert abs(got["a"] - got["b"]) <= max(costs.values()) + 64


def test_tokens_come_by_weight() -> None:
    got = use(turns(a=3, b=1, c=0.5), lambda _: 20, {"a", "b", "c"})
    assert got["a"] / got["b"] == pytest.approx(3, rel=0.05)
    assert got["b"] / got["c"] == pytest.approx(2, rel=0.05)


def test_nobody_waits_longer_than_the_others_use_a_round_each() -> None:
    draw = random.Random(1)
    made = turns(**dict.fromkeys("abcde", 1.0))
    since: Counter[str] = Counter()
    for _ in range(5000):
        tenant = made.next(set("abcde"))
        since[tenant] = 0
        tokens = draw.randint(1, 300)
        made.charge(tenant, tokens)
        for other in set("abcde") - {tenant}:
            since[other] += tokens
        assert max(since.values()) <= 2 * 4 * (64 + 300)


def test_a_turn_stays_until_it_is_used_up() -> None:
    made = turns(a=1, b=1)
    for tenant in "ab":
        for _ in range(4):
            assert made.next({"a", "b"}) == tenant
            made.charge(tenant, 16)
    assert made.next({"a", "b"}) == "a"


def test_who_wants_nothing_gains_nothing_by_it() -> None:
    made = turns(a=1, b=1)
    use(made, lambda _: 10, {"a"}, 1000)
    got = use(made, lambda _: 10, {"a", "b"}, 10_000)
    assert got["b"] - got["a"] <= 1000 + 64
    made.settle()
    got = use(made, lambda _: 10, {"a", "b"}, 10_000)
    assert abs(got["b"] - got["a"]) <= 64


def test_who_finds_no_room_is_owed_what_others_use_in_his_stead() -> None:
    made = turns(a=1, b=1, c=1)
    made.waiting = frozenset("b")
    first = use(made, lambda _: 10, {"a", "c"}, 2000)
    assert abs(first["a"] - first["c"]) <= 64
    got = use(made, lambda _: 10, set("abc"), 900)
    assert got["b"] >= 890


def test_a_newcomer_is_next_and_no_better_off_than_the_best_of_the_others() -> None:
    made = turns(a=1, b=1)
    made.charge("a", 5000)
    made.charge("b", 3000)
    made.enter("c", 1)
    assert made.next({"a", "b", "c"}) == "c"
    got = use(made, lambda _: 10, {"a", "b", "c"}, 6000)
    assert abs(got["b"] - got["c"]) <= 64 and got["a"] < got["b"] - 1900


def test_who_leaves_is_forgotten_and_a_copy_is_a_copy() -> None:
    made = turns(a=1, b=1)
    trial = made.copy()
    trial.charge("a", 500)
    assert (made.next({"a", "b"}), trial.next({"a", "b"})) == ("a", "b")
    made.charge("a", 500)
    made.keep({"b"})
    made.enter("a", 1)
    assert use(made, lambda _: 10, {"a", "b"}, 1000)["a"] >= 480


def test_a_new_weight_counts_from_then_on() -> None:
    made = turns(a=1, b=1)
    made.enter("a", 4)
    got = use(made, lambda _: 8, {"a", "b"})
    assert got["a"] / got["b"] == pytest.approx(4, rel=0.05)
