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
