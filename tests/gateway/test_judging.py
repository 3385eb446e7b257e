"""The judge: every case in a table, and what holds of any course that an answer may take."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.judging import RECOVERED, SAGGING, Action, Seen, Terms, judge

HOLD = Terms(when="hold", tokens=32, seconds=1.5, threshold=0.5, speculative=True)
END = replace(HOLD, when="end")
EARLY = Seen(confidence=None, tokens=5, seconds=0.1, due=True, ended=False, warming=False)


@pytest.mark.parametrize(
    ("terms", "seen", "action"),
    [
        (HOLD, {}, "hold"),
        (HOLD, {"confidence": 0.9}, "hold"),
        (HOLD, {"confidence": 0.54}, "warm"),
        (HOLD, {"confidence": 0.2}, "warm"),
        (HOLD, {"confidence": 0.2, "warming": True}, "hold"),
        (HOLD, {"confidence": 0.6, "warming": True}, "hold"),
        (HOLD, {"confidence": 0.65, "warming": True}, "drop"),
        (replace(HOLD, speculative=False), {"confidence": 0.2}, "hold"),
        # the last P(good) has come, or as much as may be held back
        (HOLD, {"confidence": 0.5, "due": False}, "commit"),
        (HOLD, {"confidence": 0.49, "due": False}, "escalate"),
        (HOLD, {"confidence": 0.49, "tokens": 32}, "escalate"),
        (HOLD, {"confidence": 0.49, "seconds": 1.5}, "escalate"),
        (HOLD, {"confidence": 0.51, "seconds": 1.5}, "commit"),
        # nothing can be said of it
        (HOLD, {"seconds": 1.5}, "commit"),
        (HOLD, {"tokens": 32}, "commit"),
        (HOLD, {"due": False}, "commit"),
        (HOLD, {"ended": True}, "commit"),
        # whole answers
        (HOLD, {"ended": True, "confidence": 0.1}, "escalate"),
        (END, {"confidence": 0.1, "tokens": 900, "seconds": 90.0, "due": False}, "warm"),
        (END, {"confidence": 0.9, "tokens": 900, "seconds": 90.0, "due": False}, "hold"),
        (END, {"confidence": 0.1, "ended": True}, "escalate"),
        (END, {"confidence": 0.9, "ended": True}, "commit"),
        (END, {"ended": True}, "commit"),
    ],
)
def test_what_is_done(terms: Terms, seen: dict[str, Any], action: Action) -> None:
    assert judge(terms, replace(EARLY, **seen)) == action


CHANCES = st.none() | st.floats(0, 1)
ANY_TERMS = st.builds(
    Terms,
    when=st.sampled_from(["hold", "end"]),
    tokens=st.integers(1, 100),
    seconds=st.floats(0.01, 10),
    threshold=st.floats(0, 1),
    speculative=st.booleans(),
)
ANY_SEEN = st.builds(
    Seen,
    confidence=CHANCES,
    tokens=st.integers(0, 200),
    seconds=st.floats(0, 20),
    due=st.booleans(),
    ended=st.booleans(),
    warming=st.booleans(),
)


@given(ANY_TERMS, ANY_SEEN)
def test_at_any_time(terms: Terms, seen: Seen) -> None:
    action = judge(terms, seen)
    if seen.ended:
        assert action in ("commit", "escalate")
    if action == "escalate":
        assert seen.confidence is not None and seen.confidence < terms.threshold
    if action == "commit" and seen.confidence is not None:
        assert seen.confidence >= terms.threshold
    if action in ("warm", "drop"):
        assert terms.speculative and seen.warming == (action == "drop") and not seen.ended
    if terms.when == "hold" and (seen.tokens >= terms.tokens or seen.seconds >= terms.seconds):
        assert action in ("commit", "escalate")


@given(ANY_TERMS, st.lists(st.tuples(CHANCES, st.integers(1, 9), st.floats(0, 1)), max_size=40))
def test_a_whole_answer(terms: Terms, course: list[tuple[float | None, int, float]]) -> None:
    """It is decided once, by its end at the latest; the next tier is asked to read before it is told to stop, in turns;
    and what is done of an action shows: done again, none is asked for twice."""
    tokens, seconds, confidence, warming = 0, 0.0, None, False
    for number, (chance, more, later) in enumerate([*course, (None, 1, 0.1)]):
        tokens, seconds = tokens + more, seconds + later
        confidence = confidence if chance is None else chance
        seen = Seen(
            confidence=confidence,
            tokens=tokens,
            seconds=seconds,
            due=True,
            ended=number == len(course),
            warming=warming,
        )
        action = judge(terms, seen)
        if action in ("commit", "escalate"):
            return
        if action in ("warm", "drop"):
            warming = action == "warm"
            assert judge(terms, replace(seen, warming=warming)) == "hold"
    raise AssertionError("it was never decided")


def test_reading_ahead_does_not_flicker() -> None:
    """Between the two marks nothing changes, whichever way it came there."""
    between = HOLD.threshold + (SAGGING + RECOVERED) / 2
    for warming in (True, False):
        assert judge(HOLD, replace(EARLY, confidence=between, warming=warming)) == "hold"
