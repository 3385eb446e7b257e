"""Weights that nobody has read yet, for what need not have them as a whole."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Unread:
    """A weight of `shape` [out, in]. `read`: some of its rows, float [rows, in]."""

    shape: tuple[int, int]
    read: Callable[[range], torch.Tensor]

    def __getitem__(self, rows: slice) -> torch.Tensor:
        return self.read(range(self.shape[0])[rows])

    def whole(self) -> torch.Tensor:
        return self[:]
