"""Which token a model thinks likeliest, and how sure it is, from raw logits in one pass over them, a row a thread.

A row is read in blocks that stay in the nearest cache: their largest, then their sums about the largest so far, which
are moved when a larger one comes (M. Milakov and N. Gimelshein, arXiv:1805.02867, with the entropy's sum beside).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.kernels.numeric import exp, widen
from backends.kernels.team import deal, for_maxima, jit
from backends.kernels.vectors import dot

Array = NDArray[Any]

BLOCK = 2048
_LOWEST, _ZERO = np.float32(-np.inf), np.float32(0)


@jit
def signals(logits: Array, rows: Array, tokens: Array, out: Array) -> None:
    """As `reference.Kernels.signals`; `logits` float32, or bfloat16 as int16."""
    deal(_signals, len(rows), (logits, rows, tokens, out))


@jit
def _signals(at: int, logits: Array, rows: Array, tokens: Array, out: Array) -> None:
    row, width = rows[at], logits.shape[1]
    best, second, best_block = _largest(logits, row, 0, min(BLOCK, width)), _LOWEST, 0
    total, weighted = _ZERO, _ZERO  # of exp(x - best), and of (x - best) · exp(x - best)
    below, parts, ones = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32), np.ones(BLOCK, np.float32)
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
        _spread(logits, row, begin, end, best, below, parts)
        total += dot(parts[: end - begin], ones)
        weighted += dot(parts[: end - begin], below)
    second = max(second, _second(logits, row, best_block, min(best_block + BLOCK, width)))
    log_total = np.log(total)
    out[at, 0] = widen(logits[row, tokens[at]]) - best - log_total
    out[at, 1] = best - second
    out[at, 2] = log_total - weighted / total


@jit
def argmax(logits: Array, out: Array) -> None:
    """As `reference.Kernels.argmax`; `logits` as in `signals`."""
    deal(_argmax, len(logits), (logits, out))


@jit
def _argmax(row: int, logits: Array, out: Array) -> None:
    width = logits.shape[1]
    best, first = _largest(logits, row, 0, min(BLOCK, width)), 0
    for begin in range(BLOCK, width, BLOCK):
        largest = _largest(logits, row, begin, min(begin + BLOCK, width))
        if largest > best:
            best, first = largest, begin
    out[row] = first
    for place in range(first, min(first + BLOCK, width)):
        if widen(logits[row, place]) == best:
            out[row] = place
            break


@for_maxima
def _largest(logits: Any, row: Any, begin: Any, end: Any) -> Any:
    best = widen(logits[row, begin])
    for place in range(begin, end):
        best = max(best, widen(logits[row, place]))
    return best


@jit
def _spread(logits: Any, row: Any, begin: Any, end: Any, best: Any, below: Any, parts: Any) -> None:
    """How far the logits of a block are below the largest, and the exponentials of that."""
    block = logits[row, begin:end]
    for i in range(len(block)):
        x = widen(block[i]) - best
        below[i], parts[i] = x, exp(x)


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
