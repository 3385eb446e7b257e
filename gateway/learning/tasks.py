"""Task files that models are measured on, told apart by what is in them.

a text (.txt)   perplexity, of pieces of a thousand characters
lines of JSON (.jsonl, .jsonl.gz):
    {"text": …}                                        the same
    {"prompt": …, "choices": […], "answer": …}         which choice the model holds likeliest; `answer`: its number from
                                                       0 on, or its words
    {"prompt": …, "checker": {…}}                      an answer, graded as in `gateway.learning.samples`
    {"task_id": …, "prompt": …, "test": …, "entry_point": …}   a function that has to pass tests, as HumanEval has it
"""

import gzip
import hashlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.learning.checkers import Judge, Python, Text
from gateway.learning.samples import Sample

PIECE = 1000  # characters
FEWEST = 10  # items that an interval can be told from

Kind = Literal["perplexity", "choices", "answers"]


class TaskError(ValueError):
    """A task file cannot be used; the message names it, its line and the reason."""


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: Text


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prompt: Text
    choices: Annotated[tuple[Text, ...], Meta(min_length=2)]
    answer: int | str

    @property
    def right(self) -> int:
        """The number of the right choice; −1 where there is none such."""
        if isinstance(self.answer, int):
            return self.answer if 0 <= self.answer < len(self.choices) else -1
        return self.choices.index(self.answer) if self.answer in self.choices else -1


class Function(msgspec.Struct, frozen=True):
    """A row of HumanEval; what else it holds is not needed."""

    prompt: str
    test: str
    entry_point: str


Item = Piece | Choice | Sample


@dataclass(frozen=True, slots=True)
class Task:
    """`digest`: SHA-256 of the file."""

    name: str
    kind: Kind
    digest: str
    items: Sequence[Item]


def load(path: Path) -> Task:
    """Raises TaskError, OSError."""
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if path.suffix == ".txt":
        kind: Kind = "perplexity"
        items: list[Item] = list(pieces(_decoded(path, data)))
    else:
        kind, items = _rows(path, data)
    if len(items) < FEWEST:
        what = f"pieces of {PIECE} characters" if kind == "perplexity" else "tasks"
        raise TaskError(f"{path}: has {len(items)} {what}, of fewer than {FEWEST} no interval can be told")
    return Task(path.name, kind, digest, items)


def pieces(text: str) -> list[Piece]:
    """Cut at blanks, into pieces of PIECE characters at most; what is left at the end and shorter than half is none."""
    found, rest = [], text.strip()
    while len(rest) > PIECE:
        cut = max(rest.rfind(blank, PIECE // 2, PIECE) for blank in " \n")
        cut = cut if cut > 0 else PIECE
        found.append(Piece(rest[:cut]))
        rest = rest[cut:].lstrip()
    return found + [Piece(rest)] * (len(rest) >= PIECE // 2)


def function(row: Function) -> Sample:
    """As a conversation that asks for a function, graded by the row's tests."""
    return Sample(
        prompt="Complete this Python function. Answer with the whole function in one code block, without its "
        f"docstring and without explanations.\n```python\n{row.prompt}```",
        checker=Python(f"{row.test}\ncheck({row.entry_point})", before=row.prompt),
        set="humaneval",
        max_tokens=256,
    )


def _piece(line: bytes) -> list[Item]:
    return list(pieces(msgspec.json.decode(line, type=Piece).text))


def _choice(line: bytes) -> list[Item]:
    choice = msgspec.json.decode(line, type=Choice)
    if choice.right < 0:
        raise ValueError(f"answer: {choice.answer!r} is none of the {len(choice.choices)} choices")
    return [choice]


def _sample(line: bytes) -> list[Item]:
    sample = msgspec.json.decode(line, type=Sample)
    fault = sample.fault()
    if isinstance(sample.checker, Judge):
        fault = "checker.kind: judge asks another model, which is not there"
    if fault is not None:
        raise ValueError(fault)
    return [sample]


def _function(line: bytes) -> list[Item]:
    return [function(msgspec.json.decode(line, type=Function))]


# By a field that only lines of this kind have.
_READERS: dict[str, tuple[Kind, Callable[[bytes], list[Item]]]] = {
    "choices": ("choices", _choice),
    "checker": ("answers", _sample),
    "entry_point": ("answers", _function),
    "text": ("perplexity", _piece),
}


def _rows(path: Path, data: bytes) -> tuple[Kind, list[Item]]:
    """All lines are of the kind of the first."""
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TaskError(f"{path}: {error}") from error
    lines = [(number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
    if not lines:
        raise TaskError(f"{path}: is empty")
    items: list[Item] = []
    kind, read = _reader(path, lines[0][1])
    for number, line in lines:
        try:
            items += read(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise TaskError(f"{path}, line {number}: {error}") from error
    return kind, items


def _reader(path: Path, first: bytes) -> tuple[Kind, Callable[[bytes], list[Item]]]:
    try:
        fields = msgspec.json.decode(first, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}, line 1: {error}; a text needs the ending .txt") from error
    for field, reader in _READERS.items():
        if field in fields:
            return reader
    raise TaskError(f"{path}, line 1: has none of the fields {', '.join(_READERS)}, which tell tasks apart")


def _decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: is not UTF-8 at byte {error.start}") from error
