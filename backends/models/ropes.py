"""The rope settings of a config.json, in all their spellings.

`rope_parameters` (transformers 5), which may hold one object for each type of layers, or `rope_scaling` beside
`rope_theta`; inside them `rope_type`, or `type`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backends.layers.rotation import LinearScaling, Llama3Scaling, LongScaling, Rope, Scaling, YarnScaling
from backends.models.fields import ConfigError, integer, mapping, number

FULL, SLIDING = "full_attention", "sliding_attention"  # the types of layers
_ANY_TYPE = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


@dataclass(frozen=True, slots=True)
class _Options:
    """The settings of one rope, and what the rest of the config says to it."""

    name: str  # where they are, for messages
    own: Mapping[str, Any]
    config: Mapping[str, Any]

    @property
    def original_context(self) -> int:
        # Phi-3 has it beside the rope's settings, which then counts.
        name = "original_max_position_embeddings"
        for options in (self.config, self.own):
            if options.get(name) is not None:
                return integer(options, name)
        return integer(self.config, "max_position_embeddings")

    @property
    def factor(self) -> float:
        """Where it is not given: how much longer the context has become."""
        longest = integer(self.config, "max_position_embeddings")
        return number(self.own, "factor", longest / self.original_context)


def ropes(config: Mapping[str, Any], head_dim: int, theta: float = 10000.0) -> dict[str, Rope]:
    """The rope of each type of layers; `theta` where the config has none. Raises ConfigError."""
    name = "rope_scaling" if config.get("rope_parameters") is None else "rope_parameters"
    options = mapping(config, name)
    nested = {kind: mapping(options, kind) for kind in (FULL, SLIDING) if kind in options}
    if nested and (others := options.keys() - nested.keys()):
        raise ConfigError(f"{name}.{min(others)}: is neither {FULL} nor {SLIDING}")
    both = {f"{name}.{kind}": own for kind, own in nested.items()} if nested else {name: options}
    made = [rope(_Options(place, own, config), head_dim, theta) for place, own in both.items()]
    return dict(zip(nested or (FULL, SLIDING), made * (1 if nested else 2), strict=True))


def rope(options: _Options, head_dim: int, theta: float) -> Rope:
    """The rope of one object of settings. Raises ConfigError."""
    own, config = options.own, options.config
    kind = own.get("rope_type") or own.get("type") or "default"
    if kind not in _SCALINGS:
        known = ", ".join(map(repr, _SCALINGS))
        raise ConfigError(f"{options.name}: type {kind!r} is not supported, only {known}")
    make, fields = _SCALINGS[kind]
    if unread := own.keys() - _ANY_TYPE - fields - {"original_max_position_embeddings"}:
        raise ConfigError(f"{options.name}.{min(unread)}: is not supported for the type {kind!r}")
    theta = number({"rope_theta": own.get("rope_theta", config.get("rope_theta"))}, "rope_theta", theta)
    part = number({**config, **own}, "partial_rotary_factor", 1.0)
    made = Rope(theta, make(options), part)
    if part > 1 or made.rotated(head_dim) % 2 or not made.rotated(head_dim):
        raise ConfigError(f"partial_rotary_factor: {part} of a head of {head_dim} cannot be rotated")
    return _checked(made, head_dim)


def _checked(made: Rope, head_dim: int) -> Rope:
    if isinstance(made.scaling, LongScaling):
        for name, factors in (("short", made.scaling.short), ("long", made.scaling.long)):
            if len(factors) != made.rotated(head_dim) // 2:
                raise ConfigError(
                    f"{name}_factor: has {len(factors)} numbers, not {made.rotated(head_dim) // 2}"
                )
    return made


def _llama3(options: _Options) -> Llama3Scaling:
    own = options.own
    return Llama3Scaling(
        factor=number(own, "factor"),
        low_freq_factor=number(own, "low_freq_factor"),
        high_freq_factor=number(own, "high_freq_factor"),
        original_context=options.original_context,
    )


def _yarn(options: _Options) -> YarnScaling:
    own, factor = options.own, options.factor
    magnitude = _yarn_magnitude(factor, 1.0)
    if own.get("mscale") and own.get("mscale_all_dim"):
        parts = (_yarn_magnitude(factor, number(own, name)) for name in ("mscale", "mscale_all_dim"))
        magnitude = next(parts) / next(parts)
    return YarnScaling(
        factor=factor,
        original_context=options.original_context,
        magnitude=number(own, "attention_factor", magnitude),
        beta_fast=number(own, "beta_fast", 32.0),
        beta_slow=number(own, "beta_slow", 1.0),
        truncate=bool(own.get("truncate", True)),
    )


def _yarn_magnitude(factor: float, scale: float) -> float:
    """arXiv:2309.00071, equation 22."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _longrope(options: _Options) -> LongScaling:
    own, factor, original = options.own, options.factor, options.original_context
    # The model card of Phi-3 has this root; the paper leaves it to a search.
    magnitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return LongScaling(
        short=_numbers(own, "short_factor"),
        long=_numbers(own, "long_factor"),
        original_context=original,
        magnitude=number(own, "attention_factor", magnitude),
    )


def _numbers(options: Mapping[str, Any], name: str) -> tuple[float, ...]:
    values = options.get(name)
    if not isinstance(values, list):
        raise ConfigError(f"{name}: {values!r} is not a list of numbers")
    return tuple(number({name: value}, name) for value in values)


_Make = Callable[[_Options], Scaling | None]
_LONG: tuple[_Make, set[str]] = (_longrope, {"short_factor", "long_factor", "factor", "attention_factor"})
_YARN = {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}
_SCALINGS: dict[str, tuple[_Make, set[str]]] = {  # by type: what makes it, from which fields
    "default": (lambda options: None, set()),
    "linear": (lambda options: LinearScaling(number(options.own, "factor")), {"factor"}),
    "llama3": (_llama3, {"factor", "low_freq_factor", "high_freq_factor"}),
    "yarn": (_yarn, _YARN),
    "longrope": _LONG,
    "su": _LONG,  # its name in the first checkpoints of Phi-3
}
