"""A recorded answer is judged as a gateway judged it while it came."""

from typing import Any

import pytest

from classifier.confidence import Confidence
from gateway.judges import Brief
from gateway.learning.outcomes import terms
from gateway.learning.replaying import judged


def brief(confident: Any, when: str, tokens: int, *after: int | None) -> Brief:
    rules = [confident.rule(each) for each in after]
    return Brief(confidence=Confidence(rules), task="qa", good=None, terms=terms(when, tokens))


@pytest.mark.parametrize(
    ("when", "hold", "length", "tokens", "chance"),
    [
        ("hold", 32, 40, 32, 0.87),  # the last look before what may be held is held
        ("hold", 16, 40, 16, 0.87),
        ("hold", 32, 20, 20, 0.87),  # it ends before
        ("end", 32, 40, 40, 0.12),  # its second half is unsure
    ],
)
def test_when_it_is_decided(
    confident: Any, made: Any, when: str, hold: int, length: int, tokens: int, chance: float
) -> None:
    logprobs = [-0.1] * 32 + [-18.0] * (length - 32) if length > 32 else [-0.1] * length
    found = judged(made.recording(0, "small", True, logprobs), brief(confident, when, hold, 8, 16, 32, None))
    assert found.tokens == tokens and found.confidence is not None
    assert abs(found.confidence - chance) < 0.02 or when == "end"


def test_forced_tokens_count_as_made(confident: Any, made: Any) -> None:
    recording = made.recording(0, "small", True, [-0.1] * 12, forced=20, tokens=32)
    assert judged(recording, brief(confident, "hold", 32, 8, None)).tokens == 28


def test_nothing_free_says_nothing(confident: Any, made: Any) -> None:
    recording = made.recording(0, "small", True, [], forced=6, tokens=6)
    assert judged(recording, brief(confident, "hold", 32, 8, None)).confidence is None
