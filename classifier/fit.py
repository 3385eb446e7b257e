"""Fitting with scikit-learn: what `headrace train` does between reading data and writing an artefact.

Tiers: one logistic head each. An answer's quality y in [0, 1] counts as y of a good and 1 - y of a bad answer; the
log loss is then least where the estimate is the mean of y, which no threshold on y would give. What all tiers share
(how hard a prompt is, the mean of their logits) is learnt with one penalty, and what sets them apart with a heavier
one, since the gain by a dearer tier, which routing weighs, is the difference of two noisy things. A head's logits are
calibrated on predictions for folds that it has not seen (Platt's a·z + b) and the result is folded into its weights.
Tasks: one softmax; rules are among its inputs. Rare tasks weigh more (by the square root), and so do our own prompts.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from threadpoolctl import ThreadpoolController

from classifier import Task, corpus
from classifier.artefact import Weights
from classifier.corpus import Example, Outcome
from classifier.doubting import fit_doubt
from classifier.features import STRUCTURE
from classifier.heads import NO_PENALTY, choose_penalties, fit_head, fit_heads, folds_of, unseen_logits
from classifier.inputs import Inputs, inputs_of
from classifier.router import qualities
from classifier.rules import RULES

TASKS: tuple[Task, ...] = get_args(Task)

TASK_PENALTY = 0.3  # scikit-learn's C, from a coarse grid over all rows
EVERYDAY_WEIGHT = 3.0
RULE_BONUS = 2.0  # nats
SOURCE_GROUPS = 5

Floats32 = NDArray[np.float32]

# Threads of BLAS that wait for one another cost ten times what they save on vectors as short as these.
_BLAS = ThreadpoolController()


def fit(outcomes: Sequence[Outcome], examples: Sequence[Example]) -> tuple[Weights, float]:
    """Weights of all heads, and the tasks' accuracy on unseen sources."""
    inputs = inputs_of([row.prompt for row in outcomes] + [row.prompt for row in examples])
    own = fit_tiers(inputs.part(slice(len(outcomes))), outcomes)
    of_examples = inputs.tasks[len(outcomes) :]
    tasks = fit_tasks(of_examples, examples)
    weights = _beside(own, *inputs.task_weights(tasks.coef_, tasks.intercept_))
    trust_rules(weights)
    return weights, accuracy_on_unseen_sources(of_examples, examples)


def fit_own(outcomes: Sequence[Outcome], known: Weights) -> Weights:
    """Weights with heads for the outcomes' tiers, and the task heads that `known` ends with."""
    own = fit_tiers(inputs_of([row.prompt for row in outcomes], known), outcomes)
    tasks = slice(-len(TASKS), None)
    return _beside(own, known.structure[:, tasks], known.grams[:, tasks], known.bias[tasks])


def _beside(own: Weights, structure: Floats32, grams: Floats32, bias: Floats32) -> Weights:
    """With heads for tasks after those of the tiers."""
    return replace(
        own,
        structure=np.hstack([own.structure, structure]),
        grams=np.hstack([own.grams, grams]),
        bias=np.concatenate([own.bias, bias]),
    )


def fit_tiers(inputs: Inputs, rows: Sequence[Outcome]) -> Weights:
    """Calibrated heads of the tiers alone, and their doubt. `rows`: none that is held out."""
    good, folds = qualities(rows), folds_of(rows)
    penalties = choose_penalties(inputs.tiers, good, folds)
    heads, intercepts = fit_heads(inputs.tiers, good, penalties)
    logits = unseen_logits(inputs.tiers, good, folds, penalties)
    for tier in range(good.shape[1]):
        platt = fit_head(logits[:, tier, np.newaxis], good[:, tier], NO_PENALTY)
        slope = platt.coef_[0, 0]
        heads[tier] *= slope
        intercepts[tier] = slope * intercepts[tier] + platt.intercept_[0]
    return inputs.tier_weights(heads, intercepts, fit_doubt(inputs, rows, penalties))


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
