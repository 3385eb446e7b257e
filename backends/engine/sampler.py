"""From logits to tokens: greedy, or a draw from what temperature, top-k, top-p and min-p leave.

Rows know nothing of one another: a row's token depends on its logits, its Sampling and its position only.
"""

from collections.abc import Sequence

import numpy as np
import torch

from backends.kernels.noise import row_key
from backends.kernels.reference import Kernels
from backends.kernels.transfer import upload
from backends.wire import Sampling


def sample(
    logits: torch.Tensor, samplings: Sequence[Sampling], positions: Sequence[int], kernels: Kernels
) -> torch.Tensor:
    """One id per row of `logits` [rows, vocabulary], int64 [rows] on their device.

    `positions`: where in its sequence each token will stand; the noise is drawn from seed and position.
    """
    ids = kernels.argmax(logits)
    drawn = [row for row, sampling in enumerate(samplings) if sampling.temperature > 0]
    if not drawn:
        return ids
    chosen = [samplings[row] for row in drawn]
    keys = [row_key(sampling.seed, positions[row]) for row, sampling in zip(drawn, chosen, strict=True)]
    index = upload(drawn, logits.device, np.int64)
    scores = kernels.truncate(logits[index].float(), chosen)
    ids[index] = kernels.draw(scores, upload(keys, logits.device, np.int64))
    return ids
