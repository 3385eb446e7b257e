"""The groups of a row's columns, and the words that several integers share."""

from collections.abc import Mapping
from typing import Any

import torch

from backends.models.fields import ConfigError
from backends.models.stored import Kind
from backends.quantization.int4 import GROUP
from backends.quantization.packing.words import per_word


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


def kind_of(bits: int, columns: int, groups: int, column_groups: torch.Tensor | None = None) -> Kind:
    """Of rows of `bits` for each column, whose groups are neighbours or as `column_groups` says, int [columns]: four
    and eight where kernels hold that exactly, with groups of one size."""
    size, rest = divmod(columns, groups)
    whole_groups = not rest and (size % GROUP == 0 or groups == 1 and bits == 8)
    if whole_groups and column_groups is not None:
        whole_groups = bool((column_groups.long().bincount(minlength=groups) == size).all())
    if not whole_groups:
        return "small"
    return "eight" if bits == 8 else "four"
