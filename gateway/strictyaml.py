"""Read a YAML document as a msgspec type, strictly: one pass finds every mistake, each with its line.

The type leads: a plain scalar is text where the type says text (`name: 70b`, `prefix: 0123`, `model: no`), so
that YAML 1.1's guesses (yes, 1:30, 010, dates) never change a value. Anchors work; merge keys and tags do not.
"""

import difflib
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from typing import Any, Final, TypeVar

import yaml
from msgspec import inspect

Path = tuple[str | int, ...]
T = TypeVar("T")

_BAD: Final = object()  # what could not be read; its mistake is noted
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)")
_NUMBER = re.compile(r"[-+]?([0-9]+(_[0-9]+)*)?(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset(f"{_TAG}{name}" for name in "str int float bool null timestamp map seq".split())
_TRUTH = {"true": True, "false": False}
_KINDS = {yaml.ScalarNode: "text", yaml.SequenceNode: "a list", yaml.MappingNode: "a mapping"}


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing wrong at one place. `line` counts from 1; None where there is no document."""

    file: str
    line: int | None
    path: Path
    reason: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, dotted(self.path), self.reason) if part)


@dataclass(slots=True)
class Document:
    """What was read. `lines` maps a path to the line where it stands."""

    file: str
    mistakes: list[Mistake] = field(default_factory=list)
    lines: dict[Path, int] = field(default_factory=dict)

    def note(self, path: Path, reason: str) -> None:
        """Put down a mistake at `path`, on its line or, where it is absent, on that of what should hold it."""
        known = next(
            (self.lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self.lines), None
        )
        self.mistakes.append(Mistake(self.file, known, path, reason))

    def doubtful(self, path: Path) -> bool:
        """Whether a mistake stands at `path`, at what holds it, or at one of its parts."""
        return any(
            each.path == path[: len(each.path)] or each.path[:-1] == path
            for each in self.mistakes
            if each.path
        )


def dotted(path: Path) -> str:
    """`tiers[0].engines[1].model`; a key that is no plain word is quoted: `aliases["gpt-3.5"]`."""
    words = ""
    for part in path:
        if isinstance(part, int):
            words += f"[{part}]"
        elif re.fullmatch(r"\w+", part):
            words += f".{part}" if words else part
        else:
            words += f'["{part}"]'
    return words


def nearest(word: str, known: Iterable[str]) -> str:
    """What to say beside an unknown word: the known one that it resembles, or all of them."""
    choices = list(known)
    close = difflib.get_close_matches(word, choices, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(choices) or 'none'}"


def read(text: str, file: str, type_: type[T]) -> tuple[T | None, Document]:
    """Read `text` as `type_`, a Struct.

    Wherever something could not be read, its default stands in the result, or an empty value where there is no
    default, so that what depends on the rest can still be checked; None when nothing at all could be read.
    """
    document = Document(file)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        document.lines[()] = mark.line + 1 if mark else 1
        document.note((), f"not YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        document.note((), f"not YAML: {' '.join(str(error).split())}")
    except RecursionError:
        document.note((), "nested too deeply")
    else:
        if node is not None:
            value = _Reader(document).read(node, inspect.type_info(type_), ())
            return (None if value is _BAD else value), document
        document.note((), "is empty")
    return None, document


class _Wrong(ValueError):
    """The reason why a value is refused."""


class _Reader:
    """Walks nodes and types together and notes mistakes in the document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._kinds: dict[type[inspect.Type], Callable[[Any, Any, Path], Any]] = {
            inspect.StructType: self._struct,
            inspect.DictType: self._dict,
            inspect.VarTupleType: self._tuple,
            inspect.UnionType: self._optional,
        }

    def read(self, node: yaml.Node, kind: inspect.Type, path: Path) -> Any:
        """The value, or _BAD when it could not be read and a mistake is noted."""
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        kind, words = _described(kind)
        try:
            if read := self._kinds.get(type(kind)):
                return read(node, kind, path)
            return _scalar(node, kind, words)
        except _Wrong as wrong:
            self._document.note(path, str(wrong))
            return _BAD

    def _struct(self, node: yaml.Node, kind: inspect.StructType, path: Path) -> Any:
        fields = {each.encode_name: each for each in kind.fields}
        values: dict[str, Any] = {}
        for key, child in self._entries(node, path).items():
            if key in fields:
                values[key] = self.read(child, fields[key].type, (*path, key))
            else:
                self._document.note((*path, key), f"unknown key; {nearest(key, fields)}")
        for name, each in fields.items():
            if each.required and name not in values:
                self._document.note((*path, name), "is missing")
        readable = {name: value for name, value in values.items() if value is not _BAD}
        return kind.cls(**(_gaps(kind) | readable))

    def _dict(self, node: yaml.Node, kind: inspect.DictType, path: Path) -> Any:
        values = {}
        for key, child in self._entries(node, path).items():
            named = self._key(key, kind.key_type, (*path, key))
            value = self.read(child, kind.value_type, (*path, key))
            if named and value is not _BAD:
                values[key] = value
        return values

    def _key(self, key: str, kind: inspect.Type, path: Path) -> bool:
        words = (
            (kind.extra_json_schema or {}).get("description", "")
            if isinstance(kind, inspect.Metadata)
            else ""
        )
        inner = kind.type if isinstance(kind, inspect.Metadata) else kind
        try:
            _check_text(key, inner, words)
        except _Wrong as wrong:
            self._document.note(path, f"its name {wrong}")
            return False
        return True

    def _entries(self, node: yaml.Node, path: Path) -> dict[str, yaml.Node]:
        """A mapping's values by key; the first of several equal keys counts, and each further one is a mistake."""
        if not isinstance(node, yaml.MappingNode) or node.tag != _TAG + "map":
            raise _Wrong(f"expected a mapping, got {_what(node)}")
        entries: dict[str, yaml.Node] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self._document.mistakes.append(Mistake(self._document.file, line, path, "a key must be text"))
            elif key.value in entries:
                again = f"is given twice, first on line {self._document.lines[(*path, key.value)]}"
                self._document.mistakes.append(Mistake(self._document.file, line, (*path, key.value), again))
            else:
                self._document.lines[(*path, key.value)] = line
                entries[key.value] = value
        return entries

    def _tuple(self, node: yaml.Node, kind: inspect.VarTupleType, path: Path) -> Any:
        if not isinstance(node, yaml.SequenceNode) or node.tag != _TAG + "seq":
            raise _Wrong(f"expected a list, got {_what(node)}")
        if len(node.value) < (kind.min_length or 0):
            raise _Wrong(f"needs at least {kind.min_length} entry")
        items = [self.read(child, kind.item_type, (*path, index)) for index, child in enumerate(node.value)]
        return tuple(_gap(kind.item_type) if item is _BAD else item for item in items)

    def _optional(self, node: yaml.Node, kind: inspect.UnionType, path: Path) -> Any:
        if _is_null(node):
            return None
        (inner,) = (each for each in kind.types if not isinstance(each, inspect.NoneType))
        return self.read(node, inner, path)


def _described(kind: inspect.Type) -> tuple[inspect.Type, str]:
    """The type itself, and its description."""
    if isinstance(kind, inspect.Metadata):
        return kind.type, (kind.extra_json_schema or {}).get("description", "")
    return kind, ""


def _gap(kind: inspect.Type) -> Any:
    """What stands for a value that could not be read."""
    if isinstance(kind, inspect.StructType):
        return kind.cls(**_gaps(kind))
    return () if isinstance(kind, inspect.VarTupleType) else ""


def _gaps(kind: inspect.StructType) -> dict[str, Any]:
    return {each.encode_name: _gap(each.type) for each in kind.fields if each.required}


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "null"


def _what(node: yaml.Node) -> str:
    """A node's kind in words. Its value is not shown: it may be a secret in the wrong place."""
    if node.tag not in _PLAIN_TAGS:
        return f"the tag {node.tag.replace(_TAG, '!!')}"
    return "nothing" if _is_null(node) else _KINDS[type(node)]


def _scalar(node: yaml.Node, kind: inspect.Type, words: str) -> Any:
    expected, convert, check = _SCALARS[type(kind)]
    if not isinstance(node, yaml.ScalarNode) or _is_null(node) or node.tag not in _PLAIN_TAGS:
        raise _Wrong(f"expected {expected}, got {_what(node)}")
    value = convert(node)
    if value is None:
        found = "text in quotes" if node.style else "text" if _number(node) is None else "another number"
        raise _Wrong(f"expected {expected}, got {found}")
    check(value, kind, words)
    return value


def _integer(node: yaml.ScalarNode) -> int | None:
    return int(node.value) if not node.style and _INTEGER.fullmatch(node.value) else None


def _number(node: yaml.ScalarNode) -> float | None:
    if (
        node.style
        or not _NUMBER.fullmatch(node.value)
        or not re.search(r"[0-9]", node.value.lower().split("e")[0])
    ):
        return None
    value = float(node.value)
    return value if isfinite(value) else None


def _truth(node: yaml.ScalarNode) -> bool | None:
    return None if node.style else _TRUTH.get(node.value)


def _text(node: yaml.ScalarNode) -> str:
    return str(node.value)


def _moment(node: yaml.ScalarNode) -> datetime | None:
    try:
        moment = datetime.fromisoformat(node.value)
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment


def _check_text(value: str, kind: Any, words: str) -> None:
    if len(value) < (kind.min_length or 0):
        raise _Wrong("must not be empty")
    if kind.pattern and not re.fullmatch(kind.pattern, value):
        raise _Wrong(f"must be {words or f'text like {kind.pattern}'}")


def _check_number(value: float, kind: Any, words: str) -> None:
    bounds = (
        (kind.gt, "above", operator.gt),
        (kind.ge, "at least", operator.ge),
        (kind.lt, "below", operator.lt),
        (kind.le, "at most", operator.le),
    )
    for bound, name, holds in bounds:
        if bound is not None and not holds(value, bound):
            raise _Wrong(f"must be {name} {bound}, not {value:.15g}")
    if kind.multiple_of is not None and value % kind.multiple_of:
        raise _Wrong(f"must be a multiple of {kind.multiple_of}, not {value:.15g}")


def _check_choice(value: str, kind: Any, words: str) -> None:
    if value not in kind.values:
        raise _Wrong(f"must be one of {', '.join(kind.values)}")


def _check_nothing(value: object, kind: Any, words: str) -> None:
    """All that can be converted is fine."""


# expected in words, how to convert (None: it is not that), what to check then
_SCALARS: dict[type[inspect.Type], tuple[str, Callable[[Any], Any], Callable[[Any, Any, str], None]]] = {
    inspect.StrType: ("text", _text, _check_text),
    inspect.IntType: ("an integer", _integer, _check_number),
    inspect.FloatType: ("a number", _number, _check_number),
    inspect.BoolType: ("true or false", _truth, _check_nothing),
    inspect.DateTimeType: ("a time like 2030-01-31T12:00:00Z", _moment, _check_nothing),
    inspect.LiteralType: ("text", _text, _check_choice),
}
