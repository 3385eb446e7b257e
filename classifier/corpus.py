"""The data sets that the classifier is fitted on and measured with, as rows, and their frozen split.

A row belongs to the held-out fifth, or to a fold of the rest, by a hash of its question's text, so that a new
version of a data set moves no question from one side to the other, and two turns of one question stay together.
"""

import gzip
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from classifier import Task, everyday

TIERS = ("7b", "13b", "70b")
TIER_COLUMNS = tuple(f"y_{tier}" for tier in TIERS)
PAIR_COLUMNS = ("y_weak", "y_strong")
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


class _OutcomeLine(msgspec.Struct):
    """The columns with outcomes are named by whoever reads, and looked up in the line itself."""

    prompt: str
    source: str | None = None
    id: str | int | None = None


class _TaskLine(msgspec.Struct):
    source: str
    prompt: str
    label: Literal["code", "math", "translation", "summarization", "creative", "qa", "other_nlp"]


class _TurnsLine(msgspec.Struct):
    category: str
    turns: list[str]


def outcomes(folder: Path, name: str = TIER_OUTCOMES) -> list[Outcome]:
    """Graded answers of the three tiers. Raises CorpusError."""
    return read_outcomes(folder / name, TIER_COLUMNS)


def pairs(folder: Path) -> list[Outcome]:
    """Graded answers of a weak and a strong model that are none of the tiers. Raises CorpusError."""
    return read_outcomes(folder / MIXTRAL, PAIR_COLUMNS)


def read_outcomes(path: Path, columns: Sequence[str]) -> list[Outcome]:
    """Lines of JSON, gzipped or not, with `prompt` and the `columns` (also those of an object `scores`), which hold
    numbers in [0, 1], the cheapest tier's first; `source` and `id` where there are any. Raises CorpusError."""
    lines = []
    for number, data in _numbered(path):
        try:
            line = msgspec.json.decode(data, type=_OutcomeLine)
            lines.append((line, _graded(msgspec.json.decode(data), columns)))
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            raise CorpusError(f"{path.name}, line {number}: {error}") from error
    if not lines:
        raise CorpusError(f"{path.name}: holds no graded answers")
    shortest: dict[str, str] = {}  # a later turn's prompt holds the first turn's
    for line, _ in lines:
        known = shortest.setdefault(_question_id(line), line.prompt)
        shortest[_question_id(line)] = min(known, line.prompt, key=len)
    return [
        Outcome(line.source or path.name.split(".")[0], shortest[_question_id(line)], line.prompt, good)
        for line, good in lines
    ]


def _graded(fields: dict[str, Any], columns: Sequence[str]) -> tuple[float, ...]:
    """Raises ValueError."""
    scores = fields.get("scores")
    known = {**(scores if isinstance(scores, dict) else {}), **fields}
    values = []
    for column in columns:
        value = known.get(column)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            what = "is missing" if value is None else f"must be a number from 0 to 1, not {value!r:.40}"
            raise ValueError(f"{column} {what}")
        values.append(float(value))
    return tuple(values)


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


def _question_id(line: _OutcomeLine) -> str:
    """Turns of one conversation share theirs; what has none is a question of its own."""
    if line.id is None or line.id == "":
        return line.prompt
    return str(line.id).rsplit("/", 1)[0] if line.source == "mtbench" else str(line.id)


def _lines(path: Path, shape: type[T]) -> Iterator[T]:
    decoder = msgspec.json.Decoder(shape)
    for number, line in _numbered(path):
        try:
            yield decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorpusError(f"{path.name}, line {number}: {error}") from error


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, by number."""
    number = 1
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for line in file:
                if line.strip():
                    yield number, line
                number += 1
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, OSError) and error.strerror:  # it cannot be opened
            raise CorpusError(f"{path}: {error.strerror}") from error
        raise CorpusError(f"{path.name}, line {number}: {error}") from error
