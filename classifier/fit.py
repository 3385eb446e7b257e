"""Fitting with scikit-learn: what `headrace train` does between reading data and writing an artefact.

Tiers: one logistic head each. An answer's quality y in [0, 1] counts as y of a good and 1 - y of a bad answer; the
log loss is then least where the estimate is the mean of y, which no threshold on y would give. A head's logits are
calibrated on predictions for folds that it has not seen (Platt's a·z + b) and the result is folded into its weights.
Tasks: one softmax; rules are among its inputs. Rare tasks weigh more (by the square root), and so do our own prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from threadpoolctl import ThreadpoolController

from classifier import Task, corpus
from classifier.artefact import Weights
from classifier.corpus import Example, Outcome
from classifier.features import BUCKETS, STRUCTURE, extract
from classifier.measures import Floats, log_loss
from classifier.router import qualities
from classifier.rules import RULES

TASKS: tuple[Task, ...] = get_args(Task)

# scikit-learn's C. The tiers' is chosen by cross-validation each time; TASK_PENALTY comes from a coarse grid over all
# rows, GRAM_SCALE from one over what is not held out and over outcomes of other models.
TIER_PENALTIES = (0.005, 0.015, 0.04, 0.1)
TASK_PENALTY = 0.3
NO_PENALTY = 1e6
GRAM_SCALE = 6.0  # how much more a gram may weigh than a unit of standardised structure
EVERYDAY_WEIGHT = 3.0
RULE_BONUS = 2.0  # nats
CERTAIN = 1e-3  # how far from 0 and 1 the quality of a tier is taken to be at least
LEAST_SPREAD = 0.05  # a flag that is hardly ever set must not become a loud one
SOURCE_GROUPS = 5

# Threads of BLAS that wait for one another cost ten times what they save on vectors as short as these.
_BLAS = ThreadpoolController()


@dataclass(frozen=True, slots=True)
class Scaling:
    """Structure features at mean 0 and spread 1, after clipping to what training has seen. Each (S,)."""

    low: Floats
    high: Floats
    mean: Floats
    spread: Floats

    @classmethod
    def of(cls, structure: Floats, known: Weights | None = None) -> "Scaling":
        """From the features of all training prompts, (rows, S), and the bounds of `known` or else theirs."""
        low, high = np.percentile(structure, [0.5, 99.5], axis=0)
        if known is not None:
            low, high = known.low.astype(np.float64), known.high.astype(np.float64)
        clipped = np.clip(structure, low, high)
        return cls(low, high, clipped.mean(axis=0), np.maximum(clipped.std(axis=0), LEAST_SPREAD))

    def matrix(self, structure: Floats, grams: Any) -> Any:
        """What the heads see: sparse (rows, S + B)."""
        scaled = (np.clip(structure, self.low, self.high) - self.mean) / self.spread
        return sparse.hstack([sparse.csr_matrix(scaled), grams * GRAM_SCALE]).tocsr()

    def weights(self, heads: Floats, intercepts: Floats) -> Weights:
        """Heads (H, S + B) on scaled inputs, as weights on raw ones."""
        structure = heads[:, : len(self.mean)] / self.spread
        bias = intercepts - structure @ self.mean
        grams = heads[:, len(self.mean) :] * GRAM_SCALE
        arrays = (structure.T, grams.T, bias, self.low, self.high)
        return Weights(*(np.ascontiguousarray(array, dtype=np.float32) for array in arrays))


def fit(outcomes: Sequence[Outcome], examples: Sequence[Example]) -> tuple[Weights, float]:
    """Weights of all heads, and the tasks' accuracy on unseen sources."""
    inputs, scaling = inputs_of([row.prompt for row in outcomes] + [row.prompt for row in examples])
    of_outcomes, of_examples = inputs[: len(outcomes)], inputs[len(outcomes) :]
    heads, intercepts = fit_tiers(of_outcomes, outcomes)
    tasks = fit_tasks(of_examples, examples)
    weights = scaling.weights(np.vstack([heads, tasks.coef_]), np.concatenate([intercepts, tasks.intercept_]))
    trust_rules(weights)
    return weights, accuracy_on_unseen_sources(of_examples, examples)


def fit_own(outcomes: Sequence[Outcome], known: Weights) -> Weights:
    """Weights with heads for the outcomes' tiers, and the task heads that `known` ends with."""
    inputs, scaling = inputs_of([row.prompt for row in outcomes], known)
    own = scaling.weights(*fit_tiers(inputs, outcomes))
    tasks = slice(-len(TASKS), None)
    return replace(
        own,
        structure=np.hstack([own.structure, known.structure[:, tasks]]),
        grams=np.hstack([own.grams, known.grams[:, tasks]]),
        bias=np.concatenate([own.bias, known.bias[tasks]]),
    )


def inputs_of(prompts: Sequence[str], known: Weights | None = None) -> tuple[Any, Scaling]:
    """The prompts' inputs, sparse (rows, S + B), and how they were scaled: clipped as `known` was, if that is given."""
    found = [extract(prompt) for prompt in prompts]
    ends = np.cumsum([0, *(len(each.buckets) for each in found)])
    columns = np.concatenate([each.buckets for each in found])
    values = np.concatenate([each.weights for each in found]).astype(np.float64)
    grams = sparse.csr_matrix((values, columns, ends), shape=(len(found), BUCKETS))
    structure = np.array([each.structure for each in found], np.float64)
    scaling = Scaling.of(structure, known)
    return scaling.matrix(structure, grams), scaling


def fit_head(inputs: Any, quality: Floats, penalty: float) -> Any:
    """A logistic regression on fractional labels; where all are 0 or all are 1, nearly a constant."""
    if quality.min() == quality.max():
        quality = np.clip(quality, CERTAIN, 1 - CERTAIN)
    labels = np.repeat([1, 0], len(quality))
    shares = np.concatenate([quality, 1 - quality])
    used = np.flatnonzero(shares)
    model = LogisticRegression(C=penalty, max_iter=1000)
    with _BLAS.limit(limits=1):
        return model.fit(inputs[used % len(quality)], labels[used], sample_weight=shares[used])


def unseen_logits(inputs: Any, quality: Floats, folds: NDArray[np.intp], penalty: float) -> Floats:
    """One head's logits of each row, by a model that was fitted without the row's fold."""
    logits = np.zeros(len(quality))
    for held in np.unique(folds):
        test = folds == held
        head = fit_head(inputs[np.flatnonzero(~test)], quality[~test], penalty)
        logits[test] = head.decision_function(inputs[np.flatnonzero(test)])
    return logits


def choose_penalty(inputs: Any, rows: Sequence[Outcome]) -> float:
    """By cross-validated log loss over all tiers; fewer rows ask for a smaller one."""
    folds = folds_of(rows)
    losses = []
    for penalty in TIER_PENALTIES:
        heads = ((unseen_logits(inputs, good, folds, penalty), good) for good in qualities(rows).T)
        losses.append(sum(log_loss(1 / (1 + np.exp(-logits)), good) for logits, good in heads))
    return TIER_PENALTIES[int(np.argmin(losses))]


def folds_of(rows: Sequence[Outcome]) -> NDArray[np.intp]:
    """(n,): what is held out counts as one fold more."""
    folds = (corpus.fold(row.question) for row in rows)
    return np.array([corpus.FOLDS if fold is None else fold for fold in folds], np.intp)


def fit_tiers(inputs: Any, rows: Sequence[Outcome]) -> tuple[Floats, Floats]:
    """Calibrated heads (tiers, S + B) and their intercepts. `rows`: none that is held out."""
    penalty, folds = choose_penalty(inputs, rows), folds_of(rows)
    heads, intercepts = [], []
    for good in qualities(rows).T:
        head = fit_head(inputs, good, penalty)
        logits = unseen_logits(inputs, good, folds, penalty)
        platt = fit_head(logits[:, np.newaxis], good, NO_PENALTY)
        slope, offset = platt.coef_[0, 0], platt.intercept_[0]
        heads.append(slope * head.coef_[0])
        intercepts.append(slope * head.intercept_[0] + offset)
    return np.array(heads), np.array(intercepts)


def fit_tasks(inputs: Any, rows: Sequence[Example]) -> Any:
    """A softmax over TASKS, in their order; our own prompts hold examples of each."""
    labels = np.array([TASKS.index(row.task) for row in rows])
    weights = np.array([EVERYDAY_WEIGHT if row.source == corpus.EVERYDAY else 1.0 for row in rows])
    weights /= np.sqrt(np.bincount(labels, minlength=len(TASKS))[labels])
    model = LogisticRegression(C=TASK_PENALTY, max_iter=1000)
    with _BLAS.limit(limits=1):
        return model.fit(inputs, labels, sample_weight=weights / weights.mean())


def trust_rules(weights: Weights) -> None:
    """Let each rule speak for its task, also where the data hold too few cases for it to have learnt so."""
    for task in RULES:
        head = len(corpus.TIERS) + [str(each) for each in TASKS].index(task)
        weights.structure[STRUCTURE.index(f"rule {task}"), head] += RULE_BONUS


def accuracy_on_unseen_sources(inputs: Any, rows: Sequence[Example]) -> float:
    """Of public prompts, each judged by a model that knows nothing of its source."""
    groups = np.array([_group(row.source) for row in rows])
    labels = np.array([TASKS.index(row.task) for row in rows])
    right = np.zeros(len(rows), bool)
    for held in np.unique(groups[groups >= 0]):
        test = groups == held
        known = [row for row, out in zip(rows, test, strict=True) if not out]
        model = fit_tasks(inputs[np.flatnonzero(~test)], known)
        right[test] = model.predict(inputs[np.flatnonzero(test)]) == labels[test]
    return float(right[groups >= 0].mean())


def _group(source: str) -> int:
    """Which of the groups of sources; -1: ours, always known."""
    return -1 if source == corpus.EVERYDAY else crc32(source.encode()) % SOURCE_GROUPS
