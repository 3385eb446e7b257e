"""Rules of confidence whose verdicts a test can foretell, answers whose signals they read, and recordings of such."""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import pytest

from backends.backend import Delta, Signal, Usage
from classifier.calibration import Calibration, Calibrations
from classifier.confidence import FEATURES, Rule
from classifier.prospects import Prospect, logit
from gateway.learning.recordings import Recording


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
    def calibrations(
        model: str, *rules: Rule, weights: str = "bfloat16", prospects: Sequence[Prospect] = ()
    ) -> Calibrations:
        own = rules or tuple(Confident.rule(after) for after in (8, 16, 32, None))
        found = Calibration(model=model, weights=weights, rules=own, prospects=tuple(prospects))
        return Calibrations(models=(found,))

    @staticmethod
    def prospect(model: str, p: float, weights: str = "bfloat16") -> Prospect:
        """The model is expected to be good with `p`, whatever is known of the prompt and of the answer."""
        return Prospect(
            model=model, weights=weights, bias=logit(p), prompt=0.0, own=0.0, auc=0.8, answers=100, good=50
        )

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


class Made:
    """Recordings whose law is known: the surer a tier was of its tokens, the better its answer.

    P(good) = 1 / (1 + exp(-(skill + law · doubt))), with one doubt per answer that all its tokens show.
    """

    @staticmethod
    def recording(number: int, tier: str, good: bool, logprobs: list[float], **fields: object) -> Recording:
        values = tuple(round(value, 3) for value in logprobs)
        plain: dict[str, object] = {
            "sample": hashlib.sha256(str(number).encode()).hexdigest()[:32],
            "set": "made", "tier": tier, "model": f"model of {tier}", "weights": "float32", "task": "qa",
            "expected": 0.5, "good": good, "finish": "stop", "prompt_tokens": 100, "tokens": len(values), "forced": 0,
            "logprobs": values, "margins": tuple(-2 * value for value in values), "entropies": tuple(map(abs, values)),
        }  # fmt: skip
        return Recording(**{**plain, **fields})  # type: ignore[arg-type]

    @classmethod
    def tier(cls, tier: str, count: int, skill: float, law: float, **fields: object) -> list[Recording]:
        random = np.random.default_rng(len(tier) + count)
        made = []
        for number in range(count):
            doubt = random.normal()
            good = bool(random.random() < 1 / (1 + math.exp(-(skill + law * doubt))))
            tokens = random.normal(doubt - 3, 0.5, int(random.integers(20, 60)))
            made.append(cls.recording(number, tier, good, tokens.tolist(), **fields))
        return made


@pytest.fixture(scope="session")
def made() -> type[Made]:
    return Made


@pytest.fixture(scope="session")
def two_tiers(made: type[Made]) -> list[Recording]:
    """A small one whose confidence tells its good answers, and a large one that is nearly always right."""
    return [*made.tier("small", 300, 0.0, 3.0), *made.tier("large", 300, 3.0, 0.5)]
