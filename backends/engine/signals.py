"""How sure the model was of what it has just said: measured on the logits before anything is done to them."""

from dataclasses import dataclass

import numpy as np
import torch

from backends.engine.batch import Batch, Pick
from backends.kernels.reference import Kernels
from backends.kernels.transfer import Download, upload
from backends.wire import Signal


@dataclass(frozen=True, slots=True)
class Watched:
    """`values` [N, 3], on their way from the device, of the N picks of a batch whose rows ask."""

    values: Download
    picks: list[Pick]

    def by_row(self, batch: Batch) -> list[list[Signal]]:
        """As `batch.Runner.signals`."""
        rows: list[list[Signal]] = [[] for _ in batch.rows]
        for pick, (logprob, margin, entropy) in zip(self.picks, self.values.wait().tolist(), strict=True):
            rows[pick.row].append(Signal(logprob, margin, entropy, pick.choice.forced))
        return rows


def watch(batch: Batch, logits: torch.Tensor, sampled: torch.Tensor, kernels: Kernels) -> Watched:
    """`sampled`: the ids of the batch's picks; `logits` begin with those of these, in order."""
    asking = [(place, pick) for place, pick in enumerate(batch.picks) if batch.rows[pick.row].watched]
    at = upload([place for place, _ in asking], logits.device, np.int64)
    return Watched(Download(kernels.signals(logits, at, sampled[at])), [pick for _, pick in asking])
