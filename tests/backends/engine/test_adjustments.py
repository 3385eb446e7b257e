"""What shifts logits, against the formulas written out one token at a time."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from backends.engine.adjustments import adjust
from backends.engine.batch import Choice, Pick, Seen
from backends.wire import Sampling

PROMPT = frozenset({0, 1, 2})
OUTPUT = Counter({2: 1, 3: 4, 4: 1})
LOGITS = torch.tensor([[1.5, -0.5, 2.0, 0.75, -1.0, 0.0, 3.0]])


def pick(seen: Seen | None = None, banned: frozenset[int] = frozenset(), **options: Any) -> Pick:
    return Pick(0, 0, Sampling(max_tokens=1, **options), Choice(seen, banned))


def by_hand(logits: list[float], options: dict[str, Any]) -> list[float]:
    adjusted = []
    for token, logit in enumerate(logits):
        logit += options.get("logit_bias", {}).get(token, 0.0)
        repetition = options.get("repetition_penalty", 1.0)
        if token in PROMPT or token in OUTPUT:
            logit = logit / repetition if logit > 0 else logit * repetition
        logit -= options.get("presence_penalty", 0.0) * (token in OUTPUT)
        adjusted.append(logit - options.get("frequency_penalty", 0.0) * OUTPUT[token])
    return adjusted


@pytest.mark.parametrize(
    "options",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.25},
        {"repetition_penalty": 1.5},
        {"repetition_penalty": 0.5},
        {"logit_bias": {6: -100.0, 0: 2.0}},
        {
            "presence_penalty": -1.0,
            "frequency_penalty": 0.5,
            "repetition_penalty": 1.25,
            "logit_bias": {1: 2.0, 3: 1.0},
        },
    ],
)
def test_each_alone_and_all_together(options: dict[str, Any]) -> None:
    adjusted = adjust(LOGITS, [pick(Seen(PROMPT, OUTPUT), **options)])
    torch.testing.assert_close(adjusted[0], torch.tensor(by_hand(LOGITS[0].tolist(), options)))


@pytest.mark.parametrize("penalty", [1e-38, 1e-45, 1e-310])
def test_a_penalty_near_zero_leaves_odds_to_draw_by(penalty: float) -> None:
    adjusted = adjust(LOGITS, [pick(Seen(PROMPT, OUTPUT), repetition_penalty=penalty)])[0]
    assert adjusted.isfinite().all()
    assert set(adjusted.topk(3).indices.tolist()) == {0, 2, 3}  # what was said, and was not unlikely


def test_penalties_before_anything_is_said() -> None:
    adjusted = adjust(LOGITS, [pick(Seen(frozenset()), presence_penalty=1.0, repetition_penalty=2.0)])
    assert torch.equal(adjusted, LOGITS)


def test_what_a_grammar_does_not_allow_stays_out_whatever_else_is_asked() -> None:
    options: Any = {"repetition_penalty": 0.5, "frequency_penalty": -2.0, "logit_bias": {0: 100.0}}
    allowed = np.array([0b0101_0010], np.uint32)
    free = pick(Seen(PROMPT, OUTPUT), **options)
    constrained = free._replace(choice=replace(free.choice, allowed=allowed))
    adjusted, untouched = adjust(LOGITS.bfloat16().repeat(2, 1), [constrained, free])
    assert torch.equal(
        adjusted.isfinite(), torch.tensor([bool(0b0101_0010 >> token & 1) for token in range(7)])
    )
    assert torch.equal(adjusted[adjusted.isfinite()], untouched[adjusted.isfinite()])
    assert untouched.isfinite().all() and adjusted.dtype == torch.float32


def test_banned_tokens_stay_banned_whatever_else_is_asked() -> None:
    options = {"logit_bias": {2: 100.0}, "repetition_penalty": 0.5, "frequency_penalty": -2.0}
    adjusted = adjust(LOGITS, [pick(Seen(PROMPT, OUTPUT), frozenset({2, 5}), **options)])
    assert adjusted[0].isinf().nonzero().flatten().tolist() == [2, 5]
    assert not adjusted.isnan().any()


def test_a_row_changes_for_itself_and_the_raw_logits_stay() -> None:
    logits = LOGITS.repeat(3, 1)
    adjusted = adjust(logits, [pick(), pick(logit_bias={0: 1.0}), pick()])
    assert torch.equal(logits, LOGITS.repeat(3, 1))
    assert torch.equal(adjusted[::2], logits[::2])
    assert adjusted[1, 0] == logits[1, 0] + 1


def test_where_nobody_asks_nothing_is_touched() -> None:
    logits = LOGITS.to(torch.bfloat16)
    assert adjust(logits, [pick(temperature=0.5, min_p=0.1)]) is logits


@pytest.mark.parametrize(
    "options", [{"presence_penalty": 0.1}, {"frequency_penalty": -0.1}, {"repetition_penalty": 1.1}]
)
def test_only_penalties_keep_count(options: dict[str, float]) -> None:
    assert Seen.of([3, 3, 1], Sampling(max_tokens=1)) is None
    assert Seen.of([3, 3, 1], Sampling(max_tokens=1, **options)) == Seen(frozenset({1, 3}))  # type: ignore[arg-type]
