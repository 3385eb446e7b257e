"""When an answer is kept and when a dearer tier answers instead, decided purely: `judge(terms, seen) -> Action`.

An answer is held back, not sent, until this says `commit` or `escalate`. Which of the two hangs on the last P(good), by
what `gateway.stakes` makes of it; an answer of which nothing can be said is kept.
"""

from dataclasses import dataclass
from typing import Literal

When = Literal["hold", "end"]
Action = Literal["hold", "commit", "escalate", "warm", "drop"]
"""`warm`: let the next tier read the prompt, since it may be needed; `drop`: that is not likely any more."""

SAGGING = 0.05  # of a margin, below which it may come to escalation
RECOVERED = 0.15  # likewise, from which it hardly will


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """`tokens` and `seconds`: how much and how long is held back at most, with `when` "hold"."""

    when: When
    tokens: int
    seconds: float
    speculative: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known of an answer so far. `margin`: how much more it is worth than a dearer tier's, by the last P(good),
    None before the first; `seconds` since it began; `due`: before `Terms.tokens`, P(good) will be estimated once more;
    `warming`: the next tier has been asked to read the prompt."""

    margin: float | None
    tokens: int
    seconds: float
    due: bool
    ended: bool
    warming: bool


def judge(terms: Terms, seen: Seen) -> Action:
    """What to do now. `warm` and `drop` leave the answer held back."""
    if seen.ended or _over(terms, seen):
        return "escalate" if seen.margin is not None and seen.margin < 0 else "commit"
    if seen.margin is None or not terms.speculative:
        return "hold"
    if seen.warming:
        return "drop" if seen.margin >= RECOVERED else "hold"
    return "warm" if seen.margin < SAGGING else "hold"


def _over(terms: Terms, seen: Seen) -> bool:
    """Whether what can be held back is held back; whole answers are judged at their end only."""
    if terms.when == "end":
        return False
    return not seen.due or seen.tokens >= terms.tokens or seen.seconds >= terms.seconds
