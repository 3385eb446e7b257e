"""How far what was learnt can be trusted with a prompt: the fewer of its words were met, the less.

Trust is the chance that what was learnt holds here. Where it does not, a tier is taken to be as good as it mostly is:

    P(good) = trust · P(good | learnt) + (1 - trust) · share of good answers
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from classifier import lexicon
from classifier.features import Features


@dataclass(frozen=True, slots=True)
class Doubt:
    """N words of the lexicon, T tiers."""

    known: NDArray[np.bool_]  # (N,): the words that were met in more than one prompt
    usual: NDArray[np.float32]  # (T,): share of good answers, the mean over kinds of prompts; it never falls
    # (2,): the logit of trust where all words are known, and what it loses where none is
    slopes: NDArray[np.float32]

    def unknown(self, of: Features) -> float:
        """The share of the prompt's words that were not met, rare ones weighing more; 1 where there are none."""
        weights = lexicon.shipped().weights[of.words]
        return float(weights[~self.known[of.words]].sum() / weights.sum()) if len(weights) else 1.0

    def temper(self, good: NDArray[np.float32], of: Features) -> NDArray[np.float32]:
        """`good` (T,): what was learnt says of this prompt."""
        tempered: NDArray[np.float32] = self.usual + (good - self.usual) * np.float32(
            trust(self.unknown(of), self.slopes)
        )
        return tempered


def trust(unknown: float | NDArray[np.float64], slopes: NDArray[np.floating]) -> NDArray[np.float64]:
    """In (0, 1), for each share of unknown words."""
    value: NDArray[np.float64] = 1 / (1 + np.exp(slopes[1] * unknown - slopes[0]))
    return value
