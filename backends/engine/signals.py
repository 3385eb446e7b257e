"""How sure the model was of what it has just said: measured on the logits before anything is done to them."""

from dataclasses import dataclass

import torch

from backends.engine.batch import Batch
from backends.kernels.reference import Kernels
from backends.wire import Signal


@dataclass(frozen=True, slots=True)
class Watched:
    """`values` [N, 3], still on the device, of the N rows of a batch that ask, which have the indices `owners`."""

    values: torch.Tensor
    owners: list[int]

    def by_row(self, batch: Batch) -> list[Signal | None]:
        """As `batch.Runner.signals`."""
        rows: list[Signal | None] = [None] * len(batch.rows)
        for owner, (logprob, margin, entropy) in zip(self.owners, self.values.tolist(), strict=True):
            rows[owner] = Signal(logprob, margin, entropy, batch.rows[owner].forced)
        return rows


def watch(batch: Batch, logits: torch.Tensor, sampled: torch.Tensor, kernels: Kernels) -> Watched:
    """`sampled`: the ids of the rows that sample; `logits` begin with those of these rows, in order."""
    sampling = [index for index, row in enumerate(batch.rows) if row.sampling is not None]
    places = [place for place, index in enumerate(sampling) if batch.rows[index].watched]
    at = torch.tensor(places, device=logits.device)
    return Watched(kernels.signals(logits, at, sampled[at]), [sampling[place] for place in places])
