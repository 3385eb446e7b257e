"""The tensors of a checkpoint's files, and of these the ones that make up a packed weight."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Self

import torch

from backends.models.stored import Stored

FLOATS = frozenset({"F16", "BF16", "F32"})


@dataclass(frozen=True, slots=True)
class FileTensor:
    """As it is: `type` by safetensors' name; `read` maps it, not to be written to."""

    type: str
    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor]


Files = Mapping[str, FileTensor]


@dataclass(frozen=True, slots=True)
class Module:
    """The tensors of one linear layer, by what follows its name."""

    name: str
    tensors: Files

    def __contains__(self, suffix: str) -> bool:
        return suffix in self.tensors

    def find(
        self, suffix: str, types: Collection[str], shape: tuple[int, ...] | None = None, dimensions: int = 2
    ) -> FileTensor:
        """Raises ValueError naming a tensor that is missing, of another type, or of another shape."""
        name = f"{self.name}.{suffix}"
        if suffix not in self.tensors:
            raise ValueError(f"{name}: missing from the checkpoint")
        found = self.tensors[suffix]
        if found.type not in types:
            raise ValueError(f"{name}: has type {found.type}, not {' or '.join(sorted(types))}")
        if shape is not None and found.shape != shape:
            raise ValueError(f"{name}: has shape {list(found.shape)}, expected is {list(shape)}")
        if shape is None and len(found.shape) != dimensions:
            raise ValueError(f"{name}: has shape {list(found.shape)}, expected are {dimensions} dimensions")
        return found

    def read(self, suffix: str) -> torch.Tensor:
        """Mapped, of a tensor that is there."""
        return self.tensors[suffix].read()


@dataclass(frozen=True, slots=True)
class Packing:
    """What a checkpoint's quantised layers are. `weights` by the layers' names; `left_whole`: whether the config
    says that a layer is not quantised; `sign`: a tensor that quantised layers have."""

    weights: Mapping[str, Stored]
    used: frozenset[str]  # names of tensors that are part of a weight, or that are not needed
    left_whole: Callable[[str], bool]
    sign: str

    @classmethod
    def of(
        cls,
        found: Mapping[str, Module],
        weight: Callable[[Module], Stored],
        left_whole: Callable[[str], bool],
        sign: str,
    ) -> Self:
        """Of all that `modules` has found; `weight` may raise ValueError naming a tensor that does not fit."""
        weights = {name: weight(module) for name, module in found.items()}
        used = frozenset(f"{name}.{suffix}" for name, module in found.items() for suffix in module.tensors)
        return cls(weights, used, left_whole, sign)


def modules(files: Files, suffixes: Collection[str], is_packed: Callable[[Files], bool]) -> dict[str, Module]:
    """The linear layers whose tensors, among `suffixes`, are those of a packed one."""
    found: dict[str, dict[str, FileTensor]] = {}
    longest_first = sorted(suffixes, key=len, reverse=True)
    for name, tensor in files.items():
        suffix = next((each for each in longest_first if name.endswith(f".{each}")), None)
        if suffix is not None:
            found.setdefault(name.removesuffix(f".{suffix}"), {})[suffix] = tensor
    return {name: Module(name, tensors) for name, tensors in found.items() if is_packed(tensors)}
