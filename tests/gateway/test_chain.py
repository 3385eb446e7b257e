"""How far a request may be handed on, and what that takes at most."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chain import Chain, Link
from gateway.limits import Amount


def link(tier: str, money: int, *, judged: bool = True, attempts: int = 3) -> Link:
    amount = Amount(tokens=100, input=60, output=40, money=money)
    return Link(tier=tier, amount=amount, judged=judged, attempts=attempts)


def chain(*links: Link, limit: int | None = None, whole: bool = True) -> Chain:
    return Chain(links=links, limit=limit, whole=whole)


THREE = (link("7b", 10), link("13b", 30), link("70b", 100, judged=False))


@pytest.mark.parametrize(
    ("of", "from_7b"),
    [
        (chain(*THREE), ["13b", "13b 70b", "70b"]),
        (chain(*THREE, limit=139), ["13b", "70b"]),
        (chain(*THREE, limit=110), ["13b", "70b"]),
        (chain(*THREE, limit=109), ["13b"]),
        (chain(*THREE, limit=39), []),
        (chain(*THREE, limit=5), []),  # the first one is always run: who may not is left out before
        (chain(*THREE, limit=100, whole=False), ["13b", "13b 70b", "70b"]),
        (chain(*THREE, limit=99, whole=False), ["13b"]),
        (chain(link("7b", 10, judged=False), *THREE[1:]), []),
        (chain(THREE[0], link("13b", 30, judged=False), THREE[2]), ["13b", "70b"]),
        (chain(link("7b", 10, attempts=2), *THREE[1:]), ["13b", "70b"]),
        (chain(link("7b", 10, attempts=1), *THREE[1:]), []),
    ],
)
def test_how_far(of: Chain, from_7b: list[str]) -> None:
    paths = [[link.tier for link in path] for path, _ in of.paths()]
    assert [" ".join(path[1:]) for path in paths if path[0] == "7b" and path[1:]] == from_7b


def test_at_worst_the_whole_chain_is_charged() -> None:
    assert chain(*THREE).worst() == Amount(tokens=300, input=180, output=120, money=140)
    assert chain(*THREE, whole=False).worst() == Amount(tokens=100, input=60, output=40, money=100)
    alone = [link(tier, money, judged=False) for tier, money in (("7b", 10), ("70b", 100))]
    assert chain(*alone).worst().money == 100


def test_the_next_tier_may_be_passed_over() -> None:
    """It may be down, or not judged itself."""
    unjudged = chain(THREE[0], link("13b", 30, judged=False), THREE[2])
    assert unjudged.worst().money == 110
    assert unjudged.provides(["7b"], "70b") and not unjudged.provides(["7b", "13b"], "70b")


def test_who_answers_after_all_is_paid_twice() -> None:
    assert chain(*THREE).provides(["7b"], "7b")
    assert not chain(*THREE, limit=15).provides(["7b"], "7b")
    assert not chain(THREE[0], limit=None).provides(["7b"], "7b")  # for which nothing is reserved


@given(
    st.lists(st.tuples(st.integers(0, 50), st.booleans(), st.integers(1, 4)), min_size=1, max_size=5),
    st.none() | st.integers(0, 150),
    st.booleans(),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
)
def test_no_chain_that_may_happen_costs_more(
    drawn: list[tuple[int, bool, int]], limit: int | None, whole: bool, asked: list[int]
) -> None:
    links = [
        link(str(n), money, judged=judged, attempts=most) for n, (money, judged, most) in enumerate(drawn)
    ]
    of = Chain(links=links, limit=limit, whole=whole)
    provided = of.worst()
    for path, amount in of.paths():
        assert 1 <= len(path) <= path[0].attempts and all(each.judged for each in path[:-1])
        charged = sum(each.amount.money for each in path) if whole else path[-1].amount.money
        assert charged == amount.money <= provided.money
        assert len(path) == 1 or limit is None or charged <= limit
        if len(path) > 1:
            assert of.provides([each.tier for each in path[:-1]], path[-1].tier)
    *wanting, last = [links[n % len(links)] for n in asked]
    if wanting and of.provides([each.tier for each in wanting], last.tier):
        charged = sum(each.amount.money for each in (*wanting, last)) if whole else last.amount.money
        assert charged <= provided.money and (limit is None or charged <= limit)
