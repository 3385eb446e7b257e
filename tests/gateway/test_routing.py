"""The table of routes: who is taken, who follows on failure, and what the reason says."""

import pytest

from classifier import Assessment
from gateway.routing import NoRoute, Policy, Signals, TierSignals, choose, fits


def tier(
    name: str, *, available: bool = True, context: int = 1000, prompt: int = 100, cached: int = 0
) -> TierSignals:
    return TierSignals(
        name=name, available=available, context_length=context, prompt_tokens=prompt, cached_tokens=cached
    )


def good(small: float, middle: float, large: float) -> Assessment:
    return Assessment(task="qa", good={"7b": small, "13b": middle, "70b": large}, seconds=0.001)


THREE = (tier("7b"), tier("13b"), tier("70b"))


def auto(floor: float = 0.7, max_tokens: int | None = None) -> Policy:
    return Policy(tier=None, quality_floor=floor, max_tokens=max_tokens)


@pytest.mark.parametrize(
    ("assessment", "order", "words"),
    [
        (good(0.81, 0.85, 0.9), ("7b", "13b", "70b"), "7b: p=0.81 >= 0.70"),
        (good(0.70, 0.85, 0.9), ("7b", "13b", "70b"), "7b: p=0.70 >= 0.70"),
        (good(0.60, 0.72, 0.9), ("13b", "70b", "7b"), "13b: p=0.72 >= 0.70"),
        (good(0.20, 0.30, 0.7), ("70b", "13b", "7b"), "70b: p=0.70 >= 0.70"),
        # nobody is good enough: climb only for a gain
        (good(0.10, 0.12, 0.14), ("7b", "13b", "70b"), "7b: p=0.10 < 0.70"),
        (good(0.10, 0.30, 0.32), ("13b", "70b", "7b"), "13b: p=0.30 < 0.70"),
        (good(0.10, 0.12, 0.40), ("70b", "13b", "7b"), "70b: p=0.40 < 0.70"),
    ],
)
def test_auto_takes_the_cheapest_tier_that_is_good_enough(
    assessment: Assessment, order: tuple[str, ...], words: str
) -> None:
    route = choose(Signals(tiers=THREE, assessment=assessment), auto())
    assert route.order == order
    assert route.reason.startswith(words)
    assert route.assessment is assessment


def test_a_tier_that_does_not_answer_is_left_out_and_named() -> None:
    tiers = (tier("7b", available=False), tier("13b"), tier("70b"))
    route = choose(Signals(tiers=tiers, assessment=good(0.9, 0.9, 0.9)), auto())
    assert route.order == ("13b", "70b")
    assert "7b not available" in route.reason


def test_a_prompt_too_long_for_the_small_tier_goes_to_one_that_holds_it() -> None:
    tiers = (tier("7b", context=150), tier("13b", context=150), tier("70b", context=9000))
    route = choose(Signals(tiers=tiers, assessment=good(0.9, 0.9, 0.9)), auto(max_tokens=51))
    assert route.order == ("70b",)


def test_a_prompt_that_fits_nowhere_names_the_longest_context() -> None:
    tiers = (tier("7b", context=50), tier("70b", context=99))
    with pytest.raises(NoRoute) as refused:
        choose(Signals(tiers=tiers, assessment=None), auto())
    assert refused.value.longest is tiers[1]


def test_nobody_answers() -> None:
    tiers = tuple(tier(name, available=False) for name in ("7b", "13b"))
    with pytest.raises(NoRoute, match="no replica of 7b or 13b answers") as refused:
        choose(Signals(tiers=tiers, assessment=None), auto())
    assert refused.value.longest is None


def test_a_named_tier_is_taken_as_it_is_and_fails_over_to_no_other() -> None:
    policy = Policy(tier="13b", quality_floor=0.99, max_tokens=None)
    route = choose(Signals(tiers=THREE, assessment=None), policy)
    assert route.order == ("13b",)
    assert route.reason == "13b: requested, 0 of 100 prompt tokens cached"


def test_tiers_that_the_artefact_does_not_know_are_not_guessed_at() -> None:
    tiers = (tier("small"), tier("large"))
    route = choose(Signals(tiers=tiers, assessment=good(0.9, 0.9, 0.9)), auto())
    assert route.order == ("small", "large")
    assert "no estimate" in route.reason


def test_the_reason_says_how_much_of_the_prompt_is_cached() -> None:
    tiers = (tier("7b", prompt=131, cached=112),)
    route = choose(Signals(tiers=tiers, assessment=good(0.9, 0.9, 0.9)), auto())
    assert route.reason.endswith("112 of 131 prompt tokens cached")
    assert route.reason.isascii()
    assert route.reason.isprintable()


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "expected"),
    [(999, None, True), (1000, None, False), (900, 100, True), (900, 101, False)],
)
def test_fits_counts_prompt_and_answer(prompt: int, max_tokens: int | None, expected: bool) -> None:
    assert fits(tier("7b", context=1000, prompt=prompt), max_tokens) is expected
