"""Where the groups of a row's columns end, and the words that several integers share."""

from collections.abc import Mapping
from typing import Any

from backends.models.fields import ConfigError
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
