"""The softmax of attention on CPUs, a tile of keys at a time (the online one, arXiv:1805.02867).

A token's answer is the same to the last bit whatever else is in its step, wherever its prompt is cut, and whether it
is one of many or runs alone. For that each sum has one order, which follows from the keys' positions alone: keys come
in tiles that begin at multiples of TILE, tiles in parts that begin at multiples of PART. A part's sums begin with
nothing, and the parts are merged from first to last. What is hidden, and a tile or part of which nothing is seen,
leaves all sums as they are.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.kernels.numeric import exp, narrow
from backends.kernels.team import jit

Array = NDArray[Any]

TILE = 64  # keys at a time
PART = 512  # keys of a part, a multiple of TILE
EIGHTH = 8  # the weights of a tile are added up in so many sums, each of every eighth of them

NOTHING = np.float32(-1e30)  # a score of what is hidden; finite, so that no difference of two is NaN
_ZERO, _ONE, _TWO = np.float32(0), np.float32(1), np.float32(2)


@jit
def seen(position: int, count: int, window: int, part: int) -> Any:
    """The range of keys that a part has for tokens at `position` and after, `count` of them; from a tile's first on."""
    begin = max(0, position + 1 - window) // TILE * TILE
    return max(part * PART, begin), min((part + 1) * PART, position + count)


@jit
def capped(score: Any, cap: Any) -> Any:
    """cap · tanh(score / cap)."""
    return cap * (_ONE - _TWO / (_ONE + exp(_TWO * score / cap)))


@jit
def total_of(sums: Array, at: int) -> Any:
    """Of the EIGHTH sums in column `at`."""
    a, b = sums[0, at] + sums[4, at], sums[1, at] + sums[5, at]
    c, d = sums[2, at] + sums[6, at], sums[3, at] + sums[7, at]
    return (a + c) + (b + d)


@jit
def fold(top: Array, total: Array, mean: Array, next_top: Array, next_total: Array, next_mean: Array) -> None:
    """Merge the next part into those before it (arXiv:2205.14135, section 3.1), for each query: the largest score
    [queries], the sum of weights below it [queries], and that of the values [queries, size]."""
    for m in range(len(top)):
        best = max(top[m], next_top[m])
        own, other = exp(top[m] - best), exp(next_top[m] - best)
        top[m] = best
        total[m] = total[m] * own + next_total[m] * other
        for i in range(mean.shape[1]):
            mean[m, i] = mean[m, i] * own + next_mean[m, i] * other


@jit
def finish(total: Array, mean: Array, token: int, head: int, group: int, out: Array) -> None:
    """Write the answers of the tokens from `token` on, for the query heads of key/value head `head`."""
    size = mean.shape[1]
    for m in range(len(total)):
        target = out[token + m // group, (head * group + m % group) * size :]
        for i in range(size):
            target[i] = narrow(mean[m, i] / total[m], target[i])
