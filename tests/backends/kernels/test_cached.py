"""Products with what the cache holds: each sum in its one order, whatever registers it is added up in."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from backends.kernels.cached import FEW, mix, mixing, score, scoring
from backends.kernels.numeric import fused, widen
from backends.kernels.softmax import TILE
from backends.kernels.team import jit
from backends.kernels.vectors import STEP, row_maximum, row_sum

Array = NDArray[Any]

VECTORS = 150
SIZES = [8, 24, 64, 80, 96, 128, 256]


def _compiled(score: Any, mix: Any) -> tuple[Any, Any]:
    @jit
    def scored(queries: Array, cache: Array, scales: Array, places: Array, many: int, scores: Array) -> None:
        score(queries, cache, scales, places, many, scores)

    @jit
    def mixed(
        weights: Array, cache: Array, scales: Array, places: Array, many: int, kept: Array, means: Array
    ) -> None:
        mix(weights, cache, scales, places, many, kept, means, cache, cache, places)

    return scored, mixed


KINDS = {
    "here": _compiled(score, mix),
    "256 bits": _compiled(scoring(8, 8), mixing(8, 8)),
    "512 bits": _compiled(scoring(16, 4), mixing(16, 24)),
}


@jit
def plainly_scored(
    queries: Array, cache: Array, scales: Array, places: Array, many: int, scores: Array
) -> None:
    count, size = queries.shape
    for m in range(count):
        for j in range(many):
            total = np.float32(0)
            for i in range(size):
                number = widen(cache[places[j], i])
                if len(scales):
                    number *= scales[places[j]]
                total = fused(queries[m, i], number, total)
            scores[m, j] = total


@jit
def plainly_mixed(
    weights: Array, cache: Array, scales: Array, places: Array, many: int, kept: Array, means: Array
) -> None:
    count, size = means.shape
    for m in range(count):
        for i in range(size):
            means[m, i] *= kept[m]
            for j in range(many):
                number = widen(cache[places[j], i])
                if len(scales):
                    number *= scales[places[j]]
                means[m, i] = fused(weights[m, j], number, means[m, i])


class Case:
    """A cache that holds nothing but NaN, or scales of NaN, wherever nobody may read."""

    def __init__(self, kept: str, size: int, many: int) -> None:
        self.noise = np.random.default_rng(size + many)
        self.places = np.empty(TILE, np.int64)
        self.places[:many] = self.noise.permutation(VECTORS)[:many]
        self.places[many:] = self.places[many - 1]
        numbers = self.floats(VECTORS, size)
        numbers[np.setdiff1d(np.arange(VECTORS), self.places)] = np.nan
        self.scales = np.empty(0, np.float32)
        if kept == "float32":
            self.cache: Array = numbers
        elif kept == "bfloat16":
            self.cache = (numbers.view(np.int32) >> 16).astype(np.int16)
        else:
            self.scales = numbers[:, 0].copy()
            self.cache = self.noise.integers(-128, 128, (VECTORS, size)).astype(np.int8)

    def floats(self, *shape: int) -> Array:
        return self.noise.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kept", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("many", [1, 33, TILE])
def test_sums_are_the_same_bits_as_one_by_one(kind: str, kept: str, many: int) -> None:
    scored, mixed = KINDS[kind]
    for size in SIZES:
        case = Case(kept, size, many)
        read = case.cache, case.scales, case.places, many
        for count in range(1, FEW + 1):
            queries, factors = case.floats(count, size), case.floats(count)
            weights, before = case.floats(count, TILE), case.floats(count, size)
            ours, expected = np.empty((2, count, TILE), np.float32)
            scored(queries, *read, ours)
            plainly_scored(queries, *read, expected)
            np.testing.assert_array_equal(ours[:, :many], expected[:, :many])
            ours, expected = before.copy(), before.copy()
            mixed(weights, *read, factors, ours)
            plainly_mixed(weights, *read, factors, expected)
            np.testing.assert_array_equal(ours, expected)


@jit
def of_a_row(rows: Array, row: int, count: int) -> tuple[Any, Any]:
    return row_sum(rows, row, count), row_maximum(rows, row, count)


@pytest.mark.parametrize("count", [STEP, 3 * STEP, TILE])
def test_of_a_row_only_its_part_is_read(count: int) -> None:
    rows = -np.abs(np.random.default_rng(count).standard_normal((3, TILE))).astype(np.float32)
    rows[[0, 2]], rows[1, count:] = np.nan, np.nan
    total, largest = of_a_row(rows, 1, count)
    parts = rows[1, :count].reshape(-1, STEP).cumsum(axis=0)[-1]
    while len(parts) > 1:
        parts = parts[: len(parts) // 2] + parts[len(parts) // 2 :]
    assert total == parts[0] and largest == rows[1, :count].max()
