"""How far a request may be handed on, and what that takes at most."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chain import Link, reach, worst
from gateway.limits import Amount


def link(tier: str, money: int, *, judged: bool = True, attempts: int = 3) -> Link:
    amount = Amount(tokens=100, input=60, output=40, money=money)
    return Link(tier=tier, amount=amount, judged=judged, attempts=attempts)


THREE = [link("7b", 10), link("13b", 30), link("70b", 100, judged=False)]


@pytest.mark.parametrize(
    ("links", "limit", "whole", "reached"),
    [
        (THREE, None, True, 3),
        (THREE, 140, True, 3),
        (THREE, 139, True, 2),
        (THREE, 39, True, 1),
        (THREE, 5, True, 1),  # the first one is always run: who may not is left out before
        (THREE, 100, False, 3),
        (THREE, 99, False, 2),
        ([link("7b", 10, judged=False), *THREE[1:]], None, True, 1),
        ([link("7b", 10), link("13b", 30, judged=False), THREE[2]], None, True, 2),
        ([link("7b", 10, attempts=2), *THREE[1:]], None, True, 2),
        ([link("7b", 10, attempts=1), *THREE[1:]], None, True, 1),
        ([], None, True, 0),
    ],
)
def test_how_far(links: list[Link], limit: int | None, whole: bool, reached: int) -> None:
    assert len(reach(links, limit, whole=whole)) == reached


def test_at_worst_the_whole_chain_is_charged() -> None:
    assert worst(THREE, None, whole=True) == Amount(tokens=300, input=180, output=120, money=140)
    assert worst(THREE, None, whole=False) == Amount(tokens=100, input=60, output=40, money=100)
    alone = [link(tier, money, judged=False) for tier, money in (("7b", 10), ("70b", 100))]
    assert worst(alone, None, whole=True).money == 100


@given(
    st.lists(st.tuples(st.integers(0, 50), st.booleans(), st.integers(1, 4)), min_size=1, max_size=5),
    st.none() | st.integers(0, 150),
    st.booleans(),
)
def test_no_chain_that_may_happen_costs_more(
    drawn: list[tuple[int, bool, int]], limit: int | None, whole: bool
) -> None:
    links = [
        link(str(n), money, judged=judged, attempts=most) for n, (money, judged, most) in enumerate(drawn)
    ]
    provided = worst(links, limit, whole=whole)
    for at in range(len(links)):
        chain = reach(links[at:], limit, whole=whole)
        assert 1 <= len(chain) <= links[at].attempts
        assert all(each.judged for each in chain[:-1])
        for length in range(1, len(chain) + 1):
            sums = list(itertools.accumulate(each.amount.money for each in chain[:length]))
            charged = sums[-1] if whole else chain[length - 1].amount.money
            assert charged <= provided.money
            assert length == 1 or limit is None or charged <= limit
