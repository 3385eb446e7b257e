"""How sure a model is of its next token, from raw logits in one pass over them, a row a thread.

A row is read in blocks that stay in the nearest cache: their largest, then their sums about the largest so far, which
are moved when a larger one comes (M. Milakov and N. Gimelshein, arXiv:1805.02867, with the entropy's sum beside).
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.kernels.numeric import exp, widen
from backends.kernels.team import SUMS_IN_ANY_ORDER, jit, share

Array = NDArray[Any]

BLOCK = 2048
_LOWEST, _ZERO = np.float32(-np.inf), np.float32(0)


@jit
def signals(logits: Array, rows: Array, tokens: Array, out: Array) -> None:
    """As `reference.Kernels.signals`; `logits` float32, or bfloat16 as int16."""
    share(_signals, len(rows), (logits, rows, tokens, out))


@jit
def _signals(at: int, logits: Array, rows: Array, tokens: Array, out: Array) -> None:
    row, width = rows[at], logits.shape[1]
    best, second, best_block = _largest(logits, row, 0, min(BLOCK, width)), _LOWEST, 0
    total, weighted = _ZERO, _ZERO  # of exp(x - best), and of (x - best) · exp(x - best)
    for begin in range(0, width, BLOCK):
        end = min(begin + BLOCK, width)
        largest = _largest(logits, row, begin, end)
        if largest > best:
            factor = exp(best - largest)
            weighted = factor * (weighted + total * (best - largest))
            total *= factor
            second, best, best_block = best, largest, begin
        elif begin != best_block:
            second = max(second, largest)
        more, more_weighted = _sums(logits, row, begin, end, best)
        total += more
        weighted += more_weighted
    second = max(second, _second(logits, row, best_block, min(best_block + BLOCK, width)))
    log_total = np.log(total)
    out[at, 0] = widen(logits[row, tokens[at]]) - best - log_total
    out[at, 1] = best - second
    out[at, 2] = log_total - weighted / total


@partial(jit, fastmath=SUMS_IN_ANY_ORDER | {"nnan"})  # see `numeric.largest`
def _largest(logits: Any, row: Any, begin: Any, end: Any) -> Any:
    best = widen(logits[row, begin])
    for place in range(begin, end):
        best = max(best, widen(logits[row, place]))
    return best


@jit
def _sums(logits: Any, row: Any, begin: Any, end: Any, best: Any) -> Any:
    total, weighted = _ZERO, _ZERO
    for place in range(begin, end):
        below = widen(logits[row, place]) - best
        part = exp(below)
        total += part
        weighted += below * part
    return total, weighted


@jit
def _second(logits: Any, row: Any, begin: Any, end: Any) -> Any:
    """The second largest of a block, equal to the largest where two are."""
    best, second = _LOWEST, _LOWEST
    for place in range(begin, end):
        x = widen(logits[row, place])
        if x > best:
            best, second = x, best
        elif x > second:
            second = x
    return second
