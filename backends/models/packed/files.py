"""The tensors of a checkpoint's files, and of these the ones that make up a packed weight."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from backends.models.fields import ConfigError
from backends.models.stored import Stored
from backends.quantization.packing.words import per_word

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


def modules(files: Files, suffixes: Collection[str], is_packed: Callable[[Files], bool]) -> dict[str, Module]:
    """The linear layers whose tensors, among `suffixes`, are those of a packed one."""
    found: dict[str, dict[str, FileTensor]] = {}
    longest_first = sorted(suffixes, key=len, reverse=True)
    for name, tensor in files.items():
        suffix = next((each for each in longest_first if name.endswith(f".{each}")), None)
        if suffix is not None:
            found.setdefault(name.removesuffix(f".{suffix}"), {})[suffix] = tensor
    return {name: Module(name, tensors) for name, tensors in found.items() if is_packed(tensors)}


def used_by(found: Iterable[Module]) -> frozenset[str]:
    """The names of their tensors."""
    return frozenset(f"{module.name}.{suffix}" for module in found for suffix in module.tensors)


def left_whole(settings: Mapping[str, Any], *fields: str) -> Callable[[str], bool]:
    """Whether a layer is named in one of these lists of the config. Raises ConfigError."""
    entries = [entry for field in fields for entry in names_in(settings, field)]
    return lambda layer: any(names(entry, layer) for entry in entries)


def names_in(settings: Mapping[str, Any], field: str) -> list[str]:
    """A list of names, or of regular expressions behind "re:"; null stands for an empty one. Raises ConfigError."""
    value = settings.get(field) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ConfigError(f"{field}: {value!r} is not a list of names")
    for entry in value:
        try:
            re.compile(entry.removeprefix("re:") if entry.startswith("re:") else "")
        except re.error as error:
            raise ConfigError(f"{field}: {entry!r}: {error}") from None
    return value


def names(entry: str, layer: str) -> bool:
    """Whether an entry of a list names a layer: by a regular expression from its beginning on, after "re:", or by some
    of its dotted parts, one after another."""
    if entry.startswith("re:"):
        return re.match(entry.removeprefix("re:"), layer) is not None
    return f".{entry}." in f".{layer}."


def choice(settings: Mapping[str, Any], field: str, allowed: Collection[Any], default: Any = None) -> Any:
    """A field that may have some values only, whatever their case; null stands for `default`. Raises ConfigError."""
    value = settings.get(field)
    value = default if value is None else value.lower() if isinstance(value, str) else value
    if value is None:
        raise ConfigError(f"{field}: missing")
    if isinstance(value, bool) is not all(isinstance(each, bool) for each in allowed) or value not in allowed:
        raise ConfigError(
            f"{field}: {settings.get(field)!r} is not supported, only {', '.join(map(repr, allowed))}"
        )
    return value


def refuse(settings: Mapping[str, Any], field: str, reason: str) -> None:
    """Raises ConfigError where the field says anything."""
    if settings.get(field):
        raise ConfigError(f"{field}: is not supported: {reason}")


def columns_of_groups(settings: Mapping[str, Any], field: str, columns: int) -> int:
    """The size of a group; −1 stands for all columns. Raises ConfigError."""
    size = settings.get(field)
    if isinstance(size, bool) or not isinstance(size, int) or size == 0 or size < -1:
        raise ConfigError(f"{field}: {size!r} is neither a positive number nor -1")
    return columns if size == -1 else size


def words_around(items: range, bits: int, count: int) -> tuple[slice, slice]:
    """The words that hold these of `count` integers that follow one another, and the integers that they hold."""
    each = per_word(bits)
    first, last = items.start // each, -(-items.stop // each)
    return slice(first, last), slice(first * each, min(last * each, count))
