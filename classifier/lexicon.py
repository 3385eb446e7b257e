"""What words mean, without a model at run time: a table with a vector for each of some 25,000 English words.

The vectors come from the input embeddings of a language model (`benchmarks/lexicon.py` makes the file). Their mean and
the directions that all words share are taken out, since these tell how common a word is rather than what it means (Mu,
Viswanath: All-but-the-Top, arXiv 1702.01417). A text is the mean of its words' vectors, rare words weighing more
(Arora, Liang, Ma: A Simple but Tough-to-Beat Baseline for Sentence Embeddings, ICLR 2017).
"""

import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DIMENSIONS = 64
SHIPPED = Path(__file__).parent / "lexicon.npz"

_SHARED_DIRECTIONS = 2
_RARE = 1e-3  # a word that is as frequent as this weighs half


@dataclass(frozen=True, slots=True)
class Lexicon:
    """N words, by the CRC-32 of their lower-case UTF-8."""

    hashes: NDArray[np.uint32]  # (N,), rising
    weights: NDArray[np.float32]  # (N,), in (0, 1]: the rarer, the more
    vectors: NDArray[np.int8]  # (N, DIMENSIONS), all of about one length

    def find(self, hashes: NDArray[np.uint32]) -> NDArray[np.intp]:
        """The rows of those words that are known, (k,), in the order of `hashes`."""
        rows = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        found: NDArray[np.intp] = rows[self.hashes[rows] == hashes]
        return found

    def mean(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """The meaning of a text of these words, (DIMENSIONS,); zeros where there are none."""
        if not len(rows):
            return np.zeros(DIMENSIONS, np.float32)
        weights = self.weights[rows]
        summed = np.einsum("n,nd->d", weights, self.vectors[rows], dtype=np.float32)
        meaning: NDArray[np.float32] = summed / (127 * weights.sum())
        return meaning


@cache
def shipped() -> Lexicon:
    """The one that features are made with."""
    with np.load(SHIPPED, allow_pickle=False) as arrays:
        weights = arrays["weights"].astype(np.float32)
        return Lexicon(arrays["hashes"], weights, arrays["vectors"])


def distilled(hashes: NDArray[np.uint32], embeddings: NDArray[np.float32]) -> Lexicon:
    """From the embeddings (N, any width) of words with distinct `hashes`, the most frequent first (Zipf's law)."""
    frequency = 1 / np.arange(10, 10 + len(hashes))
    frequency /= frequency.sum()
    centred = embeddings - embeddings.mean(axis=0, dtype=np.float64)
    _, directions = np.linalg.eigh(centred.T @ centred)
    kept = directions[:, ::-1][:, _SHARED_DIRECTIONS : _SHARED_DIRECTIONS + DIMENSIONS]
    vectors = centred @ kept
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    order = np.argsort(hashes)
    return Lexicon(
        hashes[order],
        (_RARE / (_RARE + frequency)).astype(np.float32)[order],
        np.rint(127 * vectors).astype(np.int8)[order],
    )


def pack(lexicon: Lexicon) -> bytes:
    """The bytes of the file; the same lexicon gives the same bytes."""
    file = io.BytesIO()
    weights = lexicon.weights.astype(np.float16)
    np.savez_compressed(file, hashes=lexicon.hashes, weights=weights, vectors=lexicon.vectors)
    return file.getvalue()
