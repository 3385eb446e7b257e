"""What needs Triton's interpreter, see `kernels/interpreted`; and a stand-in for what a GPU records."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]

WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2", "equal"}


class NoWaiting(TorchDispatchMode):  # type: ignore[misc]
    """Fails where the host asks for what a device has computed."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        assert name not in WAITING, f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


class Recorded(NoWaiting):
    """A `graphs.Graph` of torch's operators and Triton's kernels, with the arguments that they had: as on a GPU no line
    of Python runs again, so that whatever a step has read from the host stays as it was."""

    def __init__(self, work: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.replays = 0
        self._calls: list[Callable[[], None]] = []
        with pytest.MonkeyPatch.context() as patch, self:
            self._patch_triton(patch)
            patch.setattr(torch, "from_numpy", _not_from_the_host)
            self.result = work()

    def replay(self) -> None:
        self.replays += 1
        for call in self._calls:
            call()

    def _patch_triton(self, patch: pytest.MonkeyPatch) -> None:
        from triton.runtime.interpreter import InterpretedFunction

        run = InterpretedFunction.run

        def launch(kernel: Any, *args: Any, **kwargs: Any) -> None:
            with _disable_current_modes():
                run(kernel, *args, **kwargs)
            self._calls.append(lambda: run(kernel, *args, **kwargs))

        patch.setattr(InterpretedFunction, "run", launch)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = super().__torch_dispatch__(func, types, args, kwargs)

        def again() -> None:
            for old, new in zip(_tensors(out), _tensors(func(*args, **kwargs)), strict=True):
                if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)

        self._calls.append(again)
        return out


def _not_from_the_host(array: Any) -> torch.Tensor:
    raise AssertionError("a graph would copy what the host has now, or fail to be recorded at all")


def _tensors(result: Any) -> list[torch.Tensor]:
    several = result if isinstance(result, (list, tuple)) else [result]
    return [each for each in several if isinstance(each, torch.Tensor)]


@pytest.fixture(scope="session")
def recorded() -> type[Recorded]:
    return Recorded


@pytest.fixture(scope="session")
def no_waiting() -> type[NoWaiting]:
    return NoWaiting
