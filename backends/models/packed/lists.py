"""The lists of a `quantization_config` that name layers."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from backends.models.fields import ConfigError


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
