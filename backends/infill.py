"""Filling a gap in a text: the control tokens by which models are told what stands before it and what behind it.

A new family of models is one row of the table. The order is that of the models' training: prefix, suffix, then the
middle is generated (Bavarian et al., arXiv 2207.14255). Names are those of the model cards of Qwen2.5-Coder,
CodeGemma, StarCoder 2 and DeepSeek-Coder.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spelling:
    """The names that a family gives them. `ends`: what its models say, besides these, behind the end of a file."""

    prefix: str
    suffix: str
    middle: str
    ends: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.prefix, self.suffix, self.middle, *self.ends)


SPELLINGS = (
    Spelling(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
    ),
    Spelling("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ("<fim_pad>", "<repo_name>", "<file_sep>")),
    Spelling("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)


@dataclass(frozen=True, slots=True)
class Infill:
    """The same tokens by their ids. `ends`: all that end the middle, besides the model's own end tokens."""

    prefix: int
    suffix: int
    middle: int
    ends: tuple[int, ...]
    names: tuple[str, ...]

    def around(self, before: list[int], after: list[int]) -> list[int]:
        """The prompt behind which the model writes the middle."""
        return [self.prefix, *before, self.suffix, *after, self.middle]


def find_infill(id_of: Callable[[str], int | None]) -> Infill | None:
    """By a vocabulary's look-up. None for a model that was not taught to fill gaps."""
    for spelling in SPELLINGS:
        found = {name: id for name in spelling.names if (id := id_of(name)) is not None}
        if {spelling.prefix, spelling.suffix, spelling.middle} <= found.keys():
            return Infill(
                prefix=found[spelling.prefix],
                suffix=found[spelling.suffix],
                middle=found[spelling.middle],
                ends=tuple(found.values()),
                names=tuple(found),
            )
    return None
