"""A batch as kernels on a GPU read it: all numbers in the device's memory, so that no launch waits for the device."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from backends.kernels.layout import Ints, Layout
from backends.kernels.transfer import upload

# Numbers of 16 bytes. Triton compiles a kernel anew, for seconds, where an address is of another kind than before.
ALIGNED = 4


@dataclass(frozen=True, slots=True)
class Tiles:
    """Spans cut into tiles of a few tokens each.

    `table` int32 [tiles, 4]: the span, its first token here, how many tokens, and where the first one of them stands in
    `order`, int32 [tokens]: the batch's tokens that the tiles hold.
    """

    table: torch.Tensor
    order: torch.Tensor

    @property
    def tokens(self) -> int:
        return len(self.order)


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """`positions`, `angles`, `rows` int32 [tokens] and `tables` int32 [spans, most] as in `Layout`; a token at position
    -1 is none: nothing is stored of it, and it attends to nothing. Tiles of short spans and of long ones."""

    positions: torch.Tensor
    angles: torch.Tensor
    rows: torch.Tensor
    tables: torch.Tensor
    short: Tiles | None
    long: Tiles | None

    @classmethod
    def of(cls, layout: Layout, short: int, long: int, border: int) -> "DeviceBatch":
        """Tiles of at most `short` tokens for spans of fewer than `border`, of `long` ones for the others.

        All numbers go to the device in one copy.
        """
        is_long = layout.counts >= border
        tiles = [
            _tiles(layout, np.flatnonzero(~is_long), short),
            _tiles(layout, np.flatnonzero(is_long), long),
        ]
        arrays = [layout.positions, layout.angles, layout.rows, layout.tables]
        arrays += [array for pair in tiles for array in pair]
        positions, angles, rows, tables, *cut = _upload_together(arrays, layout.device)
        both = (Tiles(table, order) if len(order) else None for table, order in (cut[:2], cut[2:]))
        return cls(positions, angles, rows, tables, *both)


def _tiles(layout: Layout, spans: Iterable[int], most: int) -> tuple[Ints, Ints]:
    """`Tiles.table` and `Tiles.order`, on the host."""
    table, order, slot = [], [], 0
    for span in spans:
        first, count = int(layout.firsts[span]), int(layout.counts[span])
        for begin in range(0, count, most):
            size = min(most, count - begin)
            table.append((span, first + begin, size, slot))
            slot += size
        order.append(np.arange(first, first + count, dtype=np.int32))
    tokens = np.concatenate(order) if order else np.zeros(0, np.int32)
    return np.array(table, np.int32).reshape(-1, 4), tokens


def _upload_together(arrays: list[Ints], device: torch.device) -> list[torch.Tensor]:
    padded = [np.append(array.ravel(), np.zeros(-array.size % ALIGNED, np.int32)) for array in arrays]
    parts = upload(np.concatenate(padded), device).split([array.size for array in padded])
    return [part[: array.size].view(array.shape) for part, array in zip(parts, arrays, strict=True)]
