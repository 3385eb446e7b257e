"""Fitting `classifier.confidence`: which signs of a model's own doubt tell its good answers from its bad ones.

For each task a logistic rule per number of tokens, and one for whole answers; and of every other model, what its answer
will be worth where this one's has been seen. Measured on answers held out in turn, so
that a rule which has learnt nothing is seen to have learnt nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import ThreadpoolController

from classifier import Task
from classifier.confidence import AFTER, OUTLIER, Finish, Floats, Rule, Trace, features
from classifier.measures import auc, calibration_error, log_loss
from classifier.prospects import Prospect, logit

FEWEST_GOOD, FEWEST_BAD = 30, 10  # answers of a task, without which nothing is fitted
FOLDS = 5
PENALTIES = (0.01, 0.05, 0.3)  # inverse strengths, chosen by held-out likelihood
PROSPECT_PENALTY = 1.0  # likewise, of two weights alone

# Threads of BLAS that wait for one another cost ten times what they save on matrices as small as these.
_BLAS = ThreadpoolController()


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """One answer of the model, whole, and whether it was good. `prompt`: P(good) by the prompt alone, if estimated."""

    task: Task
    trace: Trace
    finish: Finish
    prompt: float | None
    good: bool


def fit(answers: Sequence[Graded]) -> tuple[Rule, ...]:
    """A rule for each task and number of tokens of which there are enough good and bad answers."""
    rules = []
    for task in sorted({answer.task for answer in answers}):
        own = [answer for answer in answers if answer.task == task]
        with _BLAS.limit(limits=1):
            rules += [rule for after in (*AFTER, None) if (rule := _rule(task, after, own)) is not None]
    return tuple(rules)


def _rule(task: Task, after: int | None, answers: Sequence[Graded]) -> Rule | None:
    """Answers that ended before are judged as whole ones, not by this rule."""
    rows = [answer for answer in answers if len(answer.trace) >= (after or 1)]
    good = np.array([answer.good for answer in rows], np.float64)
    if good.sum() < FEWEST_GOOD or len(good) - good.sum() < FEWEST_BAD:
        return None
    seen = np.stack([_seen(answer, after) for answer in rows])
    mean, scale = seen.mean(axis=0), seen.std(axis=0)
    scale[scale < 1e-9] = 1.0  # what never varied gets no weight
    inputs = np.clip((seen - mean) / scale, -OUTLIER, OUTLIER)
    inputs[:, seen.std(axis=0) < 1e-9] = 0.0
    unseen = {penalty: _unseen(inputs, good, penalty) for penalty in PENALTIES}
    penalty = min(PENALTIES, key=lambda each: log_loss(unseen[each], good))
    fitted = _fitted(inputs, good, penalty)
    return Rule(
        task=task,
        after=after,
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
        weights=tuple(fitted.coef_[0].tolist()),
        bias=float(fitted.intercept_[0]),
        auc=auc(unseen[penalty], good),
        calibration_error=calibration_error(unseen[penalty], good),
        answers=len(rows),
        good=int(good.sum()),
    )


def _seen(answer: Graded, after: int | None) -> Floats:
    if after is None:
        return features(answer.trace, answer.finish, answer.prompt)
    return features(answer.trace.first(after), None, answer.prompt)


def _unseen(inputs: Floats, good: Floats, penalty: float) -> Floats:
    """P(good) of each row by a rule fitted without it."""
    estimates = np.empty(len(good))
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    for known, asked in folds.split(inputs, good):
        estimates[asked] = _fitted(inputs[known], good[known], penalty).predict_proba(inputs[asked])[:, 1]
    return estimates


def _fitted(inputs: Floats, good: NDArray[np.float64], penalty: float) -> LogisticRegression:
    return LogisticRegression(C=penalty, solver="newton-cholesky").fit(inputs, good > 0.5)


def fit_prospect(
    model: str, weights: str, prompt: Sequence[float], confidence: Sequence[float], good: Sequence[bool]
) -> Prospect | None:
    """Of n prompts that both models have answered; `confidence` by rules that had not seen the answer. None of too few
    good or bad answers."""
    outcomes = np.array(good, np.float64)
    if outcomes.sum() < FEWEST_GOOD or len(outcomes) - outcomes.sum() < FEWEST_BAD:
        return None
    inputs = np.array([[logit(p), logit(c)] for p, c in zip(prompt, confidence, strict=True)])
    fitted = _fitted(inputs, outcomes, PROSPECT_PENALTY)
    return Prospect(
        model=model,
        weights=weights,
        bias=float(fitted.intercept_[0]),
        prompt=float(fitted.coef_[0, 0]),
        own=float(fitted.coef_[0, 1]),
        auc=auc(_unseen(inputs, outcomes, PROSPECT_PENALTY), outcomes),
        answers=len(outcomes),
        good=int(outcomes.sum()),
    )
