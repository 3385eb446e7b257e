"""The data sets that the classifier is fitted on and measured with, as rows, and their frozen split.

A row belongs to the held-out fifth, or to a fold of the rest, by a hash of its question's text, so that a new
version of a data set moves no question from one side to the other, and two turns of one question stay together.
"""

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from classifier import Task, everyday

TIERS = ("7b", "13b", "70b")
TIER_OUTCOMES = "llama2_tiers.jsonl.gz"
TASK_TYPES = "task_types.jsonl.gz"
FOLLOW_UPS = "mt_bench_questions.jsonl.gz"
FITTED_ON = (TIER_OUTCOMES, TASK_TYPES, FOLLOW_UPS)
ALPACA = "llama2_tiers_alpacaeval_noncommercial.jsonl.gz"  # its licence forbids fitting what ships on it
MIXTRAL = "mixtral_gpt4.jsonl.gz"
EVERYDAY = "everyday"  # the source name of our own prompts

FOLDS = 5

_TALK = frozenset(["writing", "roleplay", "reasoning", "extraction", "stem", "humanities"])
T = TypeVar("T")


class CorpusError(ValueError):
    """A data set is missing or is not what it should be; the message names the file, the line and the reason."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How good the tiers' answers to a prompt were, from the cheapest to the dearest, each in [0, 1]."""

    source: str
    question: str
    prompt: str
    good: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt whose task is known."""

    source: str
    prompt: str
    task: Task


class _TierLine(msgspec.Struct):
    id: str
    source: str
    prompt: str
    y_7b: float
    y_13b: float
    y_70b: float


class _PairLine(msgspec.Struct):
    source: str
    prompt: str
    y_weak: float
    y_strong: float


class _TaskLine(msgspec.Struct):
    source: str
    prompt: str
    label: Literal["code", "math", "translation", "summarization", "creative", "qa", "other_nlp"]


class _TurnsLine(msgspec.Struct):
    category: str
    turns: list[str]


def outcomes(folder: Path, name: str = TIER_OUTCOMES) -> list[Outcome]:
    """Graded answers of the three tiers. Raises CorpusError."""
    lines = list(_lines(folder / name, _TierLine))
    shortest: dict[str, str] = {}  # a later turn's prompt holds the first turn's
    for line in lines:
        known = shortest.setdefault(_question_id(line), line.prompt)
        shortest[_question_id(line)] = min(known, line.prompt, key=len)
    return [
        Outcome(line.source, shortest[_question_id(line)], line.prompt, (line.y_7b, line.y_13b, line.y_70b))
        for line in lines
    ]


def pairs(folder: Path) -> list[Outcome]:
    """Graded answers of a weak and a strong model that are none of the tiers. Raises CorpusError."""
    lines = _lines(folder / MIXTRAL, _PairLine)
    return [Outcome(line.source, line.prompt, line.prompt, (line.y_weak, line.y_strong)) for line in lines]


def examples(folder: Path) -> list[Example]:
    """Prompts with tasks: public ones, second turns of conversations as chat, and our own. Raises CorpusError."""
    rows = [
        Example(line.source, line.prompt, "qa" if line.label == "other_nlp" else line.label)
        for line in _lines(folder / TASK_TYPES, _TaskLine)
    ]
    for talk in _lines(folder / FOLLOW_UPS, _TurnsLine):
        if talk.category in _TALK:
            rows += [Example("mtbench follow-up", turn, "chat") for turn in talk.turns[1:]]
    return rows + [Example(EVERYDAY, prompt, task) for task, prompt in everyday.prompts()]


def fold(question: str) -> int | None:
    """None for the held-out fifth; otherwise 0 to FOLDS - 1, for what is cross-validated within the rest."""
    digest = hashlib.sha256(question.strip().encode("utf-8", "surrogatepass")).digest()
    return None if digest[0] % 5 == 0 else digest[1] % FOLDS


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file that the artefact is fitted on."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FITTED_ON}


def _question_id(line: _TierLine) -> str:
    return line.id.rsplit("/", 1)[0] if line.source == "mtbench" else line.id


def _lines(path: Path, shape: type[T]) -> Iterator[T]:
    decoder = msgspec.json.Decoder(shape)
    number = 1
    try:
        with gzip.open(path) as file:
            for line in file:
                yield decoder.decode(line)
                number += 1
    except (OSError, EOFError, zlib.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CorpusError(f"{path.name}, line {number}: {reason}") from error
