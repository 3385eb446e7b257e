"""What an escalation is worth: by a threshold, by what dearer tiers are expected to make of it, and at what cost."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.prospects import Prospect
from gateway.config import Price
from gateway.routing import EXPECTED_ANSWER, WORTH_CLIMBING, TierSignals
from gateway.stakes import Above, Onward, Sight, Stakes, Verdict

PRICES = {"13b": Price(input=2.0, output=2.0), "70b": Price(input=10.0, output=10.0)}
ABLE = ("13b", "70b")
ENDED = {"tokens": 20, "ended": True}


def above(name: str, p: float | None, confident: Any, **signals: Any) -> Above:
    """`p`: what is expected of it, None where nobody knows."""
    known = {"available": True, "context_length": 999, "prompt_tokens": 100, "cached_tokens": 0}
    prospect = None if p is None else confident.prospect(name, p)
    told = TierSignals(name=name, price=PRICES[name], **{**known, **signals})
    return Above(signals=told, good=0.5, prospect=prospect)


def onward(stakes: Stakes, confidence: float, able: Any = ABLE, **sight: Any) -> Onward | None:
    seen: dict[str, Any] = {**ENDED, **sight}
    return stakes.onward(Sight(confidence=confidence, **seen), able)


@pytest.mark.parametrize(
    ("expected", "confidence", "tier", "goes"),
    [
        ((None, None), 0.4, "13b", True),  # nobody knows: the next one
        ((None, None), 0.5, "13b", False),
        ((0.6, 0.9), 0.4, "13b", True),  # the cheapest that reaches the threshold
        ((0.45, 0.9), 0.4, "70b", True),  # better, but not good enough while another is
        ((0.3, 0.48), 0.4, "70b", True),  # the best, where none is
        ((0.3, 0.44), 0.4, "70b", False),  # hardly better
        ((0.6, 0.9), 0.5, "13b", False),  # good enough as it is
        ((None, 0.9), 0.4, "70b", True),  # who is known stands above who is not
    ],
)
def test_below_a_threshold(
    confident: Any, expected: tuple[float | None, ...], confidence: float, tier: str, goes: bool
) -> None:
    stakes = Stakes(above=[above(n, p, confident) for n, p in zip(ABLE, expected, strict=True)])
    found = onward(stakes, confidence)
    assert found is not None and found.tier == tier and (found.margin < 0) == goes


def test_nobody_takes_over_who_cannot(confident: Any) -> None:
    stakes = Stakes(above=[above("13b", 0.9, confident), above("70b", 0.9, confident)])
    assert onward(stakes, 0.1, able=()) is None
    found = onward(stakes, 0.1, able=("70b",))
    assert found is not None and found.tier == "70b"


def test_worth_is_what_is_gained_less_what_it_costs(confident: Any) -> None:
    """120 tokens: .00024 on 13b, .0012 on 70b; this answer has ended, so that its rest is free."""
    both = [above("13b", 0.6, confident), above("70b", 0.8, confident)]
    stakes = Stakes(above=both, weight=100.0, usual=None)
    found = onward(stakes, 0.5)
    assert found is not None and found.tier == "70b"
    assert found.margin == pytest.approx(0.5 - (0.8 - 100 * 0.0012))
    dear = Stakes(above=both, weight=400.0, usual=20)  # as long as it was
    found = onward(dear, 0.5)
    assert found is not None and found.tier == "13b"
    assert found.margin == pytest.approx(0.5 - (0.6 - 400 * 0.00024))
    found = onward(Stakes(above=both, weight=4000.0, usual=None), 0.5)
    assert found is not None and found.margin > 0


@pytest.mark.parametrize(
    ("usual", "tokens", "ended", "counted"),
    [
        (256, 20, True, 256),
        (64, 20, True, 64),
        (64, 80, True, 80),
        (None, 20, True, 20),
        (None, 20, False, 256),
    ],
)
def test_a_weight_holds_for_costs_as_it_was_solved_for(
    confident: Any, usual: int | None, tokens: int, ended: bool, counted: int
) -> None:
    """A short answer does not make a dearer tier cheap that the route had counted with a usual one."""
    stakes = Stakes(above=[above("70b", 0.8, confident)], weight=100.0, usual=usual)
    found = onward(stakes, 0.5, tokens=tokens, ended=ended)
    assert found is not None and found.margin == pytest.approx(0.5 - (0.8 - 100 * 1e-5 * (100 + counted)))


def test_the_rest_of_an_answer_costs_too(confident: Any) -> None:
    stakes = Stakes(above=[above("70b", 0.8, confident)], price=Price(output=5.0), weight=100.0)
    found = onward(stakes, 0.5, tokens=32, ended=False)
    rest, whole = 5e-6 * (EXPECTED_ANSWER - 32), 1e-5 * (100 + EXPECTED_ANSWER)
    assert found is not None and found.margin == pytest.approx((0.5 - 100 * rest) - (0.8 - 100 * whole))


def test_what_is_cached_above_is_cheap_and_who_is_busy_dear(confident: Any) -> None:
    def margin(**signals: Any) -> float:
        found = onward(Stakes(above=[above("70b", 0.8, confident, **signals)], weight=100.0), 0.5)
        assert found is not None
        return found.margin

    assert margin(cached_tokens=100) < margin() < margin(load=1.0)


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.floats(0, 1), st.none() | st.floats(0, 1e4))
def test_who_goes_on_is_expected_to_do_better(
    p: float, confidence: float, threshold: float, weight: float | None
) -> None:
    prospect = Prospect(model="m", weights="w", bias=0.0, prompt=1.0, own=0.5, auc=0.8, answers=100, good=50)
    signals = TierSignals(
        name="70b", available=True, context_length=9, prompt_tokens=9, cached_tokens=0, price=PRICES["70b"]
    )
    stakes = Stakes(
        above=[Above(signals=signals, good=p, prospect=prospect)], threshold=threshold, weight=weight
    )
    found = onward(stakes, confidence)
    assert found is not None and found.expected is not None
    if found.margin < 0:
        gain = 0 if weight is not None else WORTH_CLIMBING - 1e-9
        assert found.expected - confidence >= gain
        assert weight is not None or confidence < threshold


@pytest.mark.parametrize(
    ("confidence", "threshold", "expected", "margin", "words"),
    [
        (0.87, 0.5, None, 0.37, "p=0.87 >= 0.50 after 20 tokens"),
        (0.12, 0.5, None, -0.38, "p=0.12 < 0.50 after 20 tokens"),
        (0.87, 0.5, 0.9, 0.37, "p=0.87 >= 0.50 after 20 tokens"),
        (0.12, 0.5, 0.7, -0.38, "p=0.12 < 0.50 after 20 tokens, 70b expected 0.70"),
        (0.12, 0.5, 0.13, 0.04, "p=0.12 < 0.50 after 20 tokens, 70b expected 0.13, hardly better"),
        (0.3, None, 0.8, -0.1, "p=0.30 after 20 tokens, 70b expected 0.80"),
        (0.3, None, 0.4, 0.1, "p=0.30 after 20 tokens, 70b expected 0.40, not worth its cost"),
    ],
)
def test_in_words(
    confidence: float, threshold: float | None, expected: float | None, margin: float, words: str
) -> None:
    verdict = Verdict(
        tier="7b",
        sight=Sight(confidence=confidence, tokens=20, ended=True),
        threshold=threshold,
        onward=Onward(tier="70b", expected=expected, margin=margin),
    )
    assert str(verdict) == words and verdict.kept == (margin >= 0)
