"""What the tiers are expected to do, by a line for each kind of prompt: an intercept, and a slope for each lead.

A prompt's scores are its leads, and the logit of each kind that it may be of. Its line is the mean of the kinds' lines,
by how likely each kind is (a mixture of experts with linear gates: Jacobs and others, Neural Computation 3, 1991).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Lines = NDArray[Any]  # (K, 1 + L, T): of K kinds, for L leads and T tiers; one where kinds are not told apart


def along(lines: Lines, scores: NDArray[Any]) -> NDArray[Any]:
    """Logits (..., T) of scores (..., L + K), or (..., L) where there is one line."""
    leads = lines.shape[1] - 1
    line = lines[0]
    if len(lines) > 1:
        line = np.einsum("...k,klt->...lt", likely(scores[..., leads:]), lines)
    logits: NDArray[Any] = line[..., 0, :] + np.einsum(
        "...l,...lt->...t", scores[..., :leads], line[..., 1:, :]
    )
    return logits


def likely(logits: NDArray[Any]) -> NDArray[Any]:
    """How likely each kind is, (..., K)."""
    grown = np.exp(logits - logits.max(axis=-1, keepdims=True))
    share: NDArray[Any] = grown / grown.sum(axis=-1, keepdims=True)
    return share


def straight(tiers: int) -> Lines:
    """Of scores that are the tiers' own logits."""
    return np.concatenate([np.zeros((1, tiers)), np.eye(tiers)])[np.newaxis].astype(np.float32)
