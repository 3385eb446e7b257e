"""A model's answer as it comes, text told from calls: nothing of a call appears as text, and nothing is lost.

A call is told as it is written: its name at once, then its arguments. What looks like a call and turns out to be none
before it has a name is text after all.
"""

import json
import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from backends.tools.calls import CallPiece, new_call_id
from backends.tools.formats import ToolFormat

NAME = r"[A-Za-z0-9_-]{1,128}"
# One model's template shows the object in double braces, which is a slip; some models follow it.
HEAD = re.compile(rf'\s*\{{{{1,2}}\s*"name"\s*:\s*"({NAME})"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{{)')
FENCES = {"```json": "```", "```": "```", "<tools>": "</tools>"}  # instead of the marks, begin and end
COMPACT_HEAD = re.compile(rf'\{{{{1,2}}"name":"({NAME})"')
CLOSING = re.compile(r"\s*\}?\s*\}?\s*")


class Said(NamedTuple):
    """What a piece of an answer says. Where both are there, the text came first, or the calls were whole."""

    text: str
    calls: tuple[CallPiece, ...] = ()


class CallParser:
    """Parses one answer. Pieces of text in, `Said` out; how they are cut changes no joined text and no call."""

    def __init__(
        self, form: ToolFormat, *, parallel: bool = True, bare: Collection[str] = frozenset()
    ) -> None:
        """Without `parallel` the answer is over after its first call.

        `bare`: names of tools whose calls are known without marks where an answer begins with one.
        """
        self._form = form
        self._parallel = parallel
        self._bare = bare
        self._held = ""  # what is not decided yet
        self._state: Callable[[bool], bool] = self._opening if bare else self._between
        self._ends: tuple[str, ...] = ()  # one of them may follow on the object
        self._arguments = _ObjectEnd(form.end[:1])
        self._calls = 0  # begun
        self._gap = False  # nothing but white space since the last call
        self._text: list[str] = []
        self._pieces: list[CallPiece] = []

    @property
    def called(self) -> bool:
        """Whether there has been a call."""
        return self._calls > 0

    @property
    def within(self) -> bool:
        """Whether a call has begun and its arguments are not complete."""
        return self._state == self._inside

    def push(self, text: str) -> Said:
        """What can be said by now."""
        return self._read(text, last=False)

    def finish(self, text: str) -> Said:
        """The last piece: all that was held back comes out."""
        return self._read(text, last=True)

    def _read(self, text: str, last: bool) -> Said:
        self._held += text
        while self._held and self._state(last):
            pass
        said = Said("".join(self._text), tuple(self._pieces))
        self._text, self._pieces = [], []
        return said

    # Each state takes what it can from `_held`, and returns whether there may be more to take.

    def _opening(self, last: bool) -> bool:
        """The beginning of the answer, or what follows on a call without marks: maybe such a call."""
        inner, ends = self._unfenced()
        if (head := HEAD.match(inner)) is not None and head[1] in self._bare:
            self._begin(head[1], ends)
            self._held = inner[head.end() :]
            self._state = self._inside
        elif last or not _may_begin(inner, self._bare):
            self._state = self._between
        else:
            return False
        return True

    def _unfenced(self) -> tuple[str, tuple[str, ...]]:
        """What is held less a fence, and what then closes it; empty where it may yet become one."""
        rest = self._held.lstrip()
        fences = FENCES if self._form.bare else {}
        if any(fence.startswith(rest) for fence in fences):
            return "", ()
        for fence, end in fences.items():
            if rest.startswith(fence):
                return rest[len(fence) :], (end,)
        return rest, ()

    def _between(self, last: bool) -> bool:
        """Text. White space that may stand before a call waits, and after a call it is dropped."""
        if self._gap:
            self._held = self._held.lstrip()
        at = self._held.find(self._form.begin)
        if at >= 0 and self._form.begin:
            self._say(len(self._held[:at].rstrip()))
            self._state = self._head
            return True
        kept = 0 if last else _overlap(self._held, self._form.begin)
        body = self._held[: len(self._held) - kept]
        self._say(len(body) if last else len(body.rstrip()))
        return False

    def _say(self, length: int) -> None:
        if length:
            self._text.append(self._held[:length])
            self._held = self._held[length:]
            self._gap = False

    def _head(self, last: bool) -> bool:
        """Behind a mark: the call up to its arguments."""
        begun = self._held.index(self._form.begin) + len(self._form.begin)
        if (head := HEAD.match(self._held, begun)) is not None:
            self._begin(head[1], (self._form.end,))
            self._held = self._held[head.end() :]
            self._state = self._inside
            return True
        if self._held[begun:].lstrip()[:1] not in ("", "{"):
            return self._none(begun)
        end = self._held.find(self._form.end, begun)
        if end >= 0:
            return self._whole(self._held[begun:end], end + len(self._form.end))
        return self._whole(self._held[begun:], len(self._held)) if last else False

    def _whole(self, written: str, length: int) -> bool:
        """A call that is written in another order, and so known only when it is complete."""
        if (call := _call(written)) is None:
            return self._none(length)
        name, arguments = call
        self._begin(name, ())
        self._pieces.append(CallPiece(index=self._calls - 1, arguments=arguments))
        self._held = self._held[length:]
        return self._over()

    def _none(self, length: int) -> bool:
        self._say(length)
        self._state = self._between
        return True

    def _begin(self, name: str, ends: tuple[str, ...]) -> None:
        self._ends = ends
        self._pieces.append(CallPiece(index=self._calls, id=new_call_id(), name=name))
        self._calls += 1
        self._arguments = _ObjectEnd(self._form.end[:1])

    def _inside(self, last: bool) -> bool:
        """Arguments."""
        length = self._arguments.find(self._held)
        if length:
            self._pieces.append(CallPiece(index=self._calls - 1, arguments=self._held[:length]))
            self._held = self._held[length:]
        if self._arguments.found:
            self._state = self._behind
        return self._arguments.found

    def _behind(self, last: bool) -> bool:
        """The rest of the object and the mark, which some models forget."""
        closing = CLOSING.match(self._held)
        rest = self._held[closing.end() :] if closing else self._held
        if not last and (not rest or any(end.startswith(rest) and end != rest for end in self._ends)):
            return False
        self._held = next((rest[len(end) :] for end in self._ends if rest.startswith(end)), rest)
        return self._over()

    def _over(self) -> bool:
        self._gap = True
        after = self._between if self._form.end in self._ends or not self._bare else self._opening
        self._state = after if self._parallel else self._deaf
        return True

    def _deaf(self, last: bool) -> bool:
        self._held = ""
        return False


class _ObjectEnd:
    """Finds the end of a JSON object that comes in pieces, by its braces, or where `stop` stands outside a string.

    `stop` may be empty.
    """

    def __init__(self, stop: str) -> None:
        self.found = False
        self._stop = stop
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def find(self, text: str) -> int:
        """How many characters of this piece belong to the object; `found` when it ends there."""
        for at, character in enumerate(text):
            if self._quoted:
                self._quote(character)
            elif character == self._stop:
                self.found = True
                return at
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    self.found = True
                    return at + 1
        return len(text)

    def _quote(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._quoted = False


def _may_begin(written: str, names: Collection[str]) -> bool:
    """Whether a text may be the beginning of a call without marks."""
    compact = "".join(written.split())
    if (head := COMPACT_HEAD.match(compact)) is None:
        return any(f'{brace}"name":"{name}"'.startswith(compact) for brace in ("{", "{{") for name in names)
    rest = compact[head.end() :]
    return head[1] in names and any(f',"{key}":{{'.startswith(rest) for key in ("arguments", "parameters"))


def _call(written: str) -> tuple[str, str] | None:
    """Name and arguments of a call that is there as a whole."""
    written = written.strip()
    if written.startswith("{{") and written.endswith("}}"):
        written = written[1:-1]
    try:
        call = json.loads(written)
    except (ValueError, RecursionError):
        return None
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        return None
    arguments: Any = call.get("arguments", call.get("parameters", {}))
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _overlap(text: str, mark: str) -> int:
    """The length of the longest end of the text with which the mark begins."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
