"""The judge: every case in a table, and what holds of any course that an answer may take."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.judging import RECOVERED, SAGGING, Action, Seen, Terms, judge

HOLD = Terms(when="hold", tokens=32, seconds=1.5, speculative=True)
END = replace(HOLD, when="end")
EARLY = Seen(margin=None, tokens=5, seconds=0.1, due=True, ended=False, warming=False)


@pytest.mark.parametrize(
    ("terms", "seen", "action"),
    [
        (HOLD, {}, "hold"),
        (HOLD, {"margin": 0.4}, "hold"),
        (HOLD, {"margin": 0.04}, "warm"),
        (HOLD, {"margin": -0.3}, "warm"),
        (HOLD, {"margin": -0.3, "warming": True}, "hold"),
        (HOLD, {"margin": 0.1, "warming": True}, "hold"),
        (HOLD, {"margin": 0.15, "warming": True}, "drop"),
        (replace(HOLD, speculative=False), {"margin": -0.3}, "hold"),
        # the last P(good) has come, or as much as may be held back
        (HOLD, {"margin": 0.0, "due": False}, "commit"),
        (HOLD, {"margin": -0.01, "due": False}, "escalate"),
        (HOLD, {"margin": -0.01, "tokens": 32}, "escalate"),
        (HOLD, {"margin": -0.01, "seconds": 1.5}, "escalate"),
        (HOLD, {"margin": 0.01, "seconds": 1.5}, "commit"),
        # nothing can be said of it
        (HOLD, {"seconds": 1.5}, "commit"),
        (HOLD, {"tokens": 32}, "commit"),
        (HOLD, {"due": False}, "commit"),
        (HOLD, {"ended": True}, "commit"),
        # whole answers
        (HOLD, {"ended": True, "margin": -0.4}, "escalate"),
        (END, {"margin": -0.4, "tokens": 900, "seconds": 90.0, "due": False}, "warm"),
        (END, {"margin": 0.4, "tokens": 900, "seconds": 90.0, "due": False}, "hold"),
        (END, {"margin": -0.4, "ended": True}, "escalate"),
        (END, {"margin": 0.4, "ended": True}, "commit"),
        (END, {"ended": True}, "commit"),
    ],
)
def test_what_is_done(terms: Terms, seen: dict[str, Any], action: Action) -> None:
    assert judge(terms, replace(EARLY, **seen)) == action


MARGINS = st.none() | st.floats(-1, 1)
ANY_TERMS = st.builds(
    Terms,
    when=st.sampled_from(["hold", "end"]),
    tokens=st.integers(1, 100),
    seconds=st.floats(0.01, 10),
    speculative=st.booleans(),
)
ANY_SEEN = st.builds(
    Seen,
    margin=MARGINS,
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
        assert seen.margin is not None and seen.margin < 0
    if action == "commit" and seen.margin is not None:
        assert seen.margin >= 0
    if action in ("warm", "drop"):
        assert terms.speculative and seen.warming == (action == "drop") and not seen.ended
    if terms.when == "hold" and (seen.tokens >= terms.tokens or seen.seconds >= terms.seconds):
        assert action in ("commit", "escalate")


@given(ANY_TERMS, st.lists(st.tuples(MARGINS, st.integers(1, 9), st.floats(0, 1)), max_size=40))
def test_a_whole_answer(terms: Terms, course: list[tuple[float | None, int, float]]) -> None:
    """It is decided once, by its end at the latest; the next tier is asked to read before it is told to stop, in turns;
    and what is done of an action shows: done again, none is asked for twice."""
    tokens, seconds, margin, warming = 0, 0.0, None, False
    for number, (found, more, later) in enumerate([*course, (None, 1, 0.1)]):
        tokens, seconds = tokens + more, seconds + later
        margin = margin if found is None else found
        seen = Seen(
            margin=margin,
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
    between = (SAGGING + RECOVERED) / 2
    for warming in (True, False):
        assert judge(HOLD, replace(EARLY, margin=between, warming=warming)) == "hold"
