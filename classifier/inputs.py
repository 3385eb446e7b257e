"""What the heads see of prompts while they are fitted: all features at comparable sizes, so that one penalty suits all.

Waves are random Fourier features of the look (structure and meaning): a linear model on them is, nearly, one with a
Gaussian kernel (Rahimi, Recht, NIPS 2007). Their directions are orthogonal, which makes the kernel less noisy (Yu and
others: Orthogonal Random Features, NIPS 2016).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import ThreadpoolController

from classifier import lexicon
from classifier.artefact import Weights
from classifier.doubt import Doubt
from classifier.features import BUCKETS, LOOK, STRUCTURE, Features, extract
from classifier.measures import Floats

Floats32 = NDArray[np.float32]

WAVES = 256
# From a coarse grid over what is not held out and over outcomes of other models: how much more or less each kind of
# feature may weigh than a unit of standardised structure does for tasks.
GRAM_SCALE = 12.0
TASK_GRAM_SCALE = 6.0
STRUCTURE_SCALE = 0.26  # for tiers, whose waves hold the structure too
WAVE_SCALE = 5.0 * (2 / WAVES) ** 0.5
LEAST_SPREAD = 0.05  # a flag that is hardly ever set must not become a loud one


# Threads of BLAS that wait for one another cost ten times what they save on matrices as small as these.
_BLAS = ThreadpoolController()


@dataclass(frozen=True, slots=True)
class Scaling:
    """Structure at mean 0 and spread 1, after clipping to what training has seen, and meaning about its mean."""

    low: Floats  # (S,)
    high: Floats  # (S,)
    mean: Floats  # (L,), of the look
    spread: Floats  # (L,); one number for all of meaning

    @classmethod
    def of(cls, structure: Floats, meaning: Floats, known: Weights | None = None) -> "Scaling":
        """From the features of all training prompts, (rows, S) and (rows, L - S), and the bounds of `known` or else
        theirs."""
        low, high = np.percentile(structure, [0.5, 99.5], axis=0)
        if known is not None:
            low, high = known.low.astype(np.float64), known.high.astype(np.float64)
        clipped = np.clip(structure, low, high)
        apart = max(float((meaning - meaning.mean(axis=0)).std()), 1e-6)
        return cls(
            low,
            high,
            np.concatenate([clipped.mean(axis=0), meaning.mean(axis=0)]),
            np.concatenate(
                [np.maximum(clipped.std(axis=0), LEAST_SPREAD), np.full(lexicon.DIMENSIONS, apart)]
            ),
        )

    def directions(self) -> tuple[Floats, Floats]:
        """Of waves over the unscaled look, (L, W), and their phases, (W,)."""
        drawn, phases = _drawn()
        directions = drawn / self.spread[:, np.newaxis]
        return directions, phases - self.mean @ directions


@dataclass(frozen=True, slots=True)
class Inputs:
    """Of n prompts, by which tiers and tasks are fitted: (n, S + W + B) and (n, S + B), sparse."""

    found: Sequence[Features]
    scaling: Scaling
    waves: Floats  # (n, W)
    tiers: Any
    tasks: Any

    def part(self, rows: slice) -> "Inputs":
        """Of these prompts."""
        return replace(
            self,
            found=self.found[rows],
            waves=self.waves[rows],
            tiers=self.tiers[rows],
            tasks=self.tasks[rows],
        )

    def tier_weights(self, heads: Floats, intercepts: Floats, doubt: Doubt) -> Weights:
        """Heads (T, S + W + B) on `tiers`, as weights on raw features."""
        scaling, structure, ends = self.scaling, len(STRUCTURE), len(STRUCTURE) + WAVES
        directions, phases = scaling.directions()
        plain = heads[:, :structure] * STRUCTURE_SCALE / scaling.spread[:structure]
        return Weights(
            structure=_plain(plain.T),
            grams=_plain(heads[:, ends:].T * GRAM_SCALE),
            bias=_plain(intercepts - plain @ scaling.mean[:structure]),
            low=_plain(scaling.low),
            high=_plain(scaling.high),
            directions=_plain(directions),
            phases=_plain(phases),
            waves=_plain(heads[:, structure:ends].T * WAVE_SCALE),
            doubt=doubt,
        )

    def task_weights(self, heads: Floats, intercepts: Floats) -> tuple[Floats32, Floats32, Floats32]:
        """Heads on `tasks`, as weights on raw structure, grams and 1."""
        structure = len(STRUCTURE)
        plain = heads[:, :structure] / self.scaling.spread[:structure]
        bias = intercepts - plain @ self.scaling.mean[:structure]
        return _plain(plain.T), _plain(heads[:, structure:].T * TASK_GRAM_SCALE), _plain(bias)


def inputs_of(prompts: Sequence[str], known: Weights | None = None) -> Inputs:
    """Of the prompts, clipped as `known` was, if that is given."""
    found = [extract(prompt) for prompt in prompts]
    structure = np.array([each.structure for each in found], np.float64)
    meaning = np.array([each.meaning for each in found], np.float64)
    scaling = Scaling.of(structure, meaning, known)
    look = np.hstack([np.clip(structure, scaling.low, scaling.high), meaning])
    with _BLAS.limit(limits=1):
        directions, phases = scaling.directions()
        waves = np.cos(look @ directions + phases)
    scaled = ((look - scaling.mean) / scaling.spread)[:, : len(STRUCTURE)]
    grams = _grams(found)
    return Inputs(
        found=found,
        scaling=scaling,
        waves=waves,
        tiers=_beside(np.hstack([scaled * STRUCTURE_SCALE, waves * WAVE_SCALE]), grams * GRAM_SCALE),
        tasks=_beside(scaled, grams * TASK_GRAM_SCALE),
    )


def _beside(dense: Floats, grams: Any) -> Any:
    return sparse.hstack([dense, grams]).tocsr()


def _grams(found: Sequence[Features]) -> Any:
    ends = np.cumsum([0, *(len(each.buckets) for each in found)])
    columns = np.concatenate([each.buckets for each in found])
    values = np.concatenate([each.weights for each in found]).astype(np.float64)
    return sparse.csr_matrix((values, columns, ends), shape=(len(found), BUCKETS))


@cache
def _drawn() -> tuple[Floats, Floats]:
    """Directions over the scaled look, whose two halves count alike, and phases; the same each time."""
    random = np.random.default_rng(0)
    blocks = [
        np.linalg.qr(random.standard_normal((LOOK, LOOK)))[0]
        * np.linalg.norm(random.standard_normal((LOOK, LOOK)), axis=0)
        for _ in range(-(-WAVES // LOOK))
    ]
    sizes = [len(STRUCTURE)] * len(STRUCTURE) + [lexicon.DIMENSIONS] * lexicon.DIMENSIONS
    directions = np.hstack(blocks)[:, :WAVES] / np.sqrt(np.array(sizes))[:, np.newaxis]
    return directions, random.uniform(0, 2 * np.pi, WAVES)


def _plain(array: NDArray[Any]) -> NDArray[np.float32]:
    return np.ascontiguousarray(array, dtype=np.float32)
