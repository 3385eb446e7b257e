"""The table of a vocabulary that ids are looked up in."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Embedding:
    """ids int64 [tokens] → [tokens, width] of `dtype`.

    `table`: a row for each id, [ids, width] of `dtype`; or as a file has it, uint8 [ids, bytes of a row], from which
    `expand` makes rows when they are looked up: a vocabulary in float32 can take more memory than all else of a model.
    """

    table: torch.Tensor
    dtype: torch.dtype
    expand: Callable[[torch.Tensor], torch.Tensor] | None = None

    @classmethod
    def of(cls, table: torch.Tensor) -> "Embedding":
        return cls(table, table.dtype)

    @property
    def device(self) -> torch.device:
        return self.table.device

    def __len__(self) -> int:
        return len(self.table)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.table.index_select(0, ids)
        return rows if self.expand is None else self.expand(rows)
