"""Rules of confidence whose verdicts a test can foretell, and answers whose signals they read."""

import math
from collections.abc import Sequence

import pytest

from backends.backend import Delta, Signal, Usage
from classifier.calibration import Calibration, Calibrations
from classifier.confidence import FEATURES, Rule


class Confident:
    """P(good) = 1 / (1 + exp(-(BIAS + the mean log-probability)))."""

    BIAS = 2.0
    SURE, UNSURE = -0.1, -4.0  # log-probabilities; P(good) 0.87 and 0.12
    WEIGHTS = "bfloat16"

    @staticmethod
    def rule(after: int | None, auc: float = 0.8, bias: float = 2.0) -> Rule:
        zeros = [0.0] * len(FEATURES)
        return Rule(
            task="qa",
            after=after,
            mean=tuple(zeros),
            scale=(1.0,) * len(FEATURES),
            weights=tuple(float(name == "logprob_mean") for name in FEATURES),
            bias=bias,
            auc=auc,
            calibration_error=0.02,
            answers=300,
            good=150,
        )

    @staticmethod
    def chance(logprob: float) -> float:
        return 1 / (1 + math.exp(-(Confident.BIAS + logprob)))

    @staticmethod
    def calibrations(model: str, *rules: Rule, weights: str = "bfloat16") -> Calibrations:
        own = rules or tuple(Confident.rule(after) for after in (8, 16, 32, None))
        return Calibrations(models=(Calibration(model=model, weights=weights, rules=own),))

    @staticmethod
    def answer(
        *logprobs: float, text: str = "s", finish: str = "stop", cached: int = 0, forced: Sequence[int] = ()
    ) -> list[Delta]:
        """A token each; the last one ends it."""
        usage = Usage(prompt_tokens=5, completion_tokens=len(logprobs), cached_tokens=cached)
        deltas = [
            Delta(
                text=f"{text}{number} ",
                tokens=1,
                signals=(Signal(logprob, 1.0, 1.0, number in forced),),
                cached=cached,
                finish=finish if number == len(logprobs) - 1 else None,  # type: ignore[arg-type]
                usage=usage if number == len(logprobs) - 1 else None,
            )
            for number, logprob in enumerate(logprobs)
        ]
        return deltas


@pytest.fixture
def confident() -> type[Confident]:
    return Confident
