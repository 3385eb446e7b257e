"""Fields of a config.json, checked; null stands for the default."""

from collections.abc import Collection, Mapping
from typing import Any


class ConfigError(ValueError):
    """A config.json that is broken or asks for what is not supported; the message names the field."""


def integer(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A positive integer. Raises ConfigError."""
    value = _present(config, name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}: {value!r} is not a positive integer")
    return value


def number(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A positive number. Raises ConfigError."""
    value = _present(config, name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"{name}: {value!r} is not a positive number")
    return float(value)


def optional_number(config: Mapping[str, Any], name: str, default: float | None = None) -> float | None:
    """A positive number, or None where the config says null. Raises ConfigError."""
    return None if config.get(name, default) is None else number(config, name, default)


def mapping(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object, empty where there is none. Raises ConfigError."""
    value = config.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{name}: {value!r} is not an object")
    return value or {}


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


def _present(config: Mapping[str, Any], name: str, default: float | None) -> Any:
    value = config.get(name)
    if value is None and default is None:
        raise ConfigError(f"{name}: missing")
    return default if value is None else value
