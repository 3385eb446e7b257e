"""What another model would make of a prompt, once this one's answer has been seen.

Models tend to fail on the same prompts: where one is unsure of its answer, another is less likely to be right than the
prompt alone tells. A logistic rule on both, fitted on answers of both models to the same prompts:

    logit P = bias + prompt · logit(its P(good) by the prompt alone) + own · logit(confidence in this model's answer)
"""

import math

import msgspec

LEAST = 0.01  # of a probability, before its logit is taken


class Prospect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`model` and `weights`: of the other model, as calibrations know them; `auc`: of answers not fitted on."""

    model: str
    weights: str
    bias: float
    prompt: float
    own: float
    auc: float
    answers: int
    good: int  # of these, the other model's

    def estimate(self, good: float, confidence: float) -> float:
        """P(good) of the other model's answer. `good`: by the prompt alone; `confidence`: in this model's answer."""
        value = self.bias + self.prompt * logit(good) + self.own * logit(confidence)
        return 1 / (1 + math.exp(-value))


def logit(p: float) -> float:
    p = min(max(p, LEAST), 1 - LEAST)
    return math.log(p / (1 - p))
