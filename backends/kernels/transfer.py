"""Copies between host and device that nobody waits for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def upload(values: NDArray[Any] | Sequence[Any], device: torch.device, dtype: Any = None) -> torch.Tensor:
    """`values` on `device`, queued behind what runs there. A plain copy to a GPU waits for all of that.

    `dtype`: of numpy, for values that are no array yet.
    """
    tensor = torch.from_numpy(np.asarray(values, dtype))
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def refill(target: torch.Tensor, values: NDArray[Any]) -> None:
    """Put `values` where `target` lies, queued like an upload."""
    source = torch.from_numpy(values)
    target.copy_(source.pin_memory() if target.is_cuda else source, non_blocking=True)


class Download:
    """A tensor on its way to the host, queued behind what makes it and before all that is queued later."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._copy = tensor
        if tensor.is_cuda:
            self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._copy.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(tensor.device))

    def wait(self) -> torch.Tensor:
        """The tensor on the host; only its own making is waited for."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copy
