"""Is this answer good? Judged by how sure the model was of its own tokens, after some of them and at the end.

Plain arrays in, P(good) out: a logistic rule per task and number of tokens, fitted by `classifier.confide` on graded
answers of one model in one weight format. A rule that could not tell good answers from bad ones of its own task when
it was measured does not judge, and says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier import Task

Floats = NDArray[np.float64]
Finish = Literal["stop", "length", "tool_calls"]

VERSION = 1  # of the features
AFTER = (8, 16, 32, 64)  # tokens, forced ones not counted, after which an answer can be judged before its end
WORTH_ASKING = 0.65  # the least area under the ROC curve, within a task, with which a rule judges
OUTLIER = 4.0  # standard deviations; what lies beyond says no more than that
FINISHES: tuple[Finish, ...] = ("stop", "length", "tool_calls")
FEATURES = (
    "logprob_mean", "logprob_5%", "logprob_10%", "logprob_25%", "logprob_least",
    "margin_mean", "margin_10%", "margin_25%",
    "entropy_mean", "entropy_90%", "entropy_most",
    "logprob_trend", "entropy_trend", "tokens", "forced",
    *FINISHES, "prompt",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trace:
    """How sure a model was of the tokens of an answer so far. Natural logarithms; forced tokens are left out of all
    three arrays (n,), NaN stands for what is not known."""

    logprobs: Floats
    margins: Floats  # between the logits of the two likeliest tokens
    entropies: Floats
    forced: int = 0  # tokens that a grammar left no choice of

    def __len__(self) -> int:
        return len(self.logprobs)

    def first(self, tokens: int) -> "Trace":
        """As if only so many had come."""
        return Trace(self.logprobs[:tokens], self.margins[:tokens], self.entropies[:tokens], self.forced)


def features(trace: Trace, finish: Finish | None, good: float | None) -> Floats:
    """(F,), in the order of FEATURES; 0 for what is not known. `finish`: None before the end.

    `good`: P(good) by the prompt alone, None where it was not estimated.
    """
    logprobs, margins, entropies = (_known(part) for part in (trace.logprobs, trace.margins, trace.entropies))
    everything = len(trace) + trace.forced
    return np.array([
        logprobs.mean(), *_quantiles(logprobs, 0.05, 0.10, 0.25, 0.0),
        margins.mean(), *_quantiles(margins, 0.10, 0.25),
        entropies.mean(), *_quantiles(entropies, 0.90, 1.0),
        _trend(logprobs), _trend(entropies), np.log1p(len(trace)), trace.forced / max(everything, 1),
        *(finish == each for each in FINISHES), 0.0 if good is None else _logit(good),
    ])  # fmt: skip


def _known(values: Floats) -> Floats:
    known = values[np.isfinite(values)]
    return known if len(known) else np.zeros(1)


def _quantiles(values: Floats, *shares: float) -> Floats:
    """Between two values in proportion. numpy's own takes ten times as long for so few."""
    ordered = np.sort(values)
    found: Floats = np.interp(np.array(shares) * (len(ordered) - 1), np.arange(len(ordered)), ordered)
    return found


def _trend(values: Floats) -> float:
    """By how much the second half is above the first."""
    half = len(values) // 2
    return float(values[half:].mean() - values[:half].mean()) if half else 0.0


def _logit(p: float) -> float:
    p = min(max(p, 0.01), 0.99)
    return float(np.log(p / (1 - p)))


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """P(good) = 1 / (1 + exp(-(bias + weights · (features - mean) / scale))). `after`: tokens, None for the end.

    `auc` and `calibration_error` are of answers that the measured rules had not been fitted on.
    """

    task: Task
    after: int | None
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float
    auc: float
    calibration_error: float
    answers: int  # that it was fitted on
    good: int  # of these

    @property
    def judges(self) -> bool:
        return self.auc >= WORTH_ASKING

    def estimate(self, seen: Floats) -> float:
        """P(good) of features (F,)."""
        standard = (seen - np.array(self.mean)) / np.array(self.scale)
        logit = self.bias + float(np.clip(standard, -OUTLIER, OUTLIER) @ np.array(self.weights))
        return float(1 / (1 + np.exp(-logit)))


class Confidence:
    """The rules of one model."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = {(rule.task, rule.after): rule for rule in rules}

    def after(self, task: Task) -> tuple[int, ...]:
        """After how many tokens an answer of this task is judged before its end, in rising order."""
        return tuple(sorted(n for (of, n), rule in self._rules.items() if of == task and n and rule.judges))

    def at_end(self, task: Task) -> bool:
        """Whether whole answers of this task are judged."""
        rule = self._rules.get((task, None))
        return rule is not None and rule.judges

    def silent(self, task: Task) -> str | None:
        """Why no answer of this task is judged, in words; None where some are."""
        aucs = [rule.auc for (of, _), rule in self._rules.items() if of == task]
        if not aucs:
            return f"no calibration for the task {task}"
        if max(aucs) < WORTH_ASKING:
            return f"confidence does not tell good answers of the task {task}: AUC {max(aucs):.2f} < {WORTH_ASKING}"
        return None

    def estimate(
        self, task: Task, after: int | None, trace: Trace, finish: Finish | None, good: float | None
    ) -> float | None:
        """P(good) after so many tokens (None: at the end). None where no rule judges then, or nothing was free."""
        rule = self._rules.get((task, after))
        if rule is None or not rule.judges or not len(trace):
            return None
        seen = trace if after is None else trace.first(after)
        return rule.estimate(features(seen, finish if after is None else None, good))
