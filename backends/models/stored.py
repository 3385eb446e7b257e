"""What every weight file has in common: tensors that lie on disk in some format until they are asked for."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


class CheckpointError(ValueError):
    """A model file is missing, damaged, or of a kind that is not read; the message names file and reason."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor on disk. `read` maps its bytes: uint8 [*shape[:-1], bytes of a row], not to be written to."""

    type: str  # one of `backends.quantization.gguf.FORMATS`, or what the file says
    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a tensor: the rows of `rows`, run below run, and of these the `columns`; None: all."""

    rows: tuple[range, ...] | None = None
    columns: range | None = None


WHOLE = Part()


def rows_of(raw: torch.Tensor, part: Part) -> torch.Tensor:
    """A view where it can be."""
    if part.rows is None:
        return raw
    runs = [raw[run.start : run.stop] for run in part.rows]
    return runs[0] if len(runs) == 1 else torch.cat(runs)
