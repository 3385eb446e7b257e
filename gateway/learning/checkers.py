"""Is this answer good? A checker of a sample says so: of its own, by running tests, or by asking a model."""

import json
import re
from collections.abc import Awaitable, Callable
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.learning.sandbox import runs_through

Text = Annotated[str, Meta(min_length=1)]
Ask = Callable[[str, str], Awaitable[bool]]
"""Of a question and an answer to it: whether a model finds it good. The question holds what it is to look for."""

_NUMBER = re.compile(r"[-−]?\$?\d[\d,]*(?:\.\d+)?")
_FENCED = re.compile(r"```[\w+-]*\n(.*?)(?:```|\Z)", re.DOTALL)


class _Checker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of all; in a sample `kind` names the checker."""


class Number(_Checker, frozen=True, tag="number"):
    """The number behind the last ####, or else the last one, equals `value`."""

    value: Text

    def check(self, answer: str) -> bool:
        _, _, behind = answer.rpartition("####")
        found = _NUMBER.findall(behind) if "####" in answer else _NUMBER.findall(answer)[-1:]
        return bool(found) and number(found[0]) == number(self.value)

    def fault(self) -> str | None:
        value = number(self.value)
        return "value: is not a number" if value is None or not value.is_finite() else None


class Regex(_Checker, frozen=True, tag="regex"):
    """The answer without blanks around it matches `pattern` from its beginning to its end, before its time is up: there
    are patterns that some texts keep busy for ever."""

    pattern: Text

    async def run(self, answer: str) -> bool:
        return await runs_through(f"import re\nassert re.fullmatch({self.pattern!r}, {answer.strip()!r})")

    def fault(self) -> str | None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            return f"pattern: {error}"
        return None


class Json(_Checker, frozen=True, tag="json"):
    """The answer is JSON, alone or in a fenced block, and equals `value`; the order of names does not count."""

    value: Any

    def check(self, answer: str) -> bool:
        try:
            return _same(json.loads(inside_fence(answer)), self.value)
        except (ValueError, RecursionError):
            return False

    def fault(self) -> str | None:
        return None


class Python(_Checker, frozen=True, tag="python"):
    """The answer's code runs between `before` and `tests` without an error."""

    tests: Text
    before: str = ""

    async def run(self, answer: str) -> bool:
        return await runs_through(f"{self.before}\n{inside_fence(answer)}\n{self.tests}")

    def fault(self) -> str | None:
        for field in ("before", "tests"):
            try:
                compile(getattr(self, field), field, "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                return f"{field}: {error}"
        return None


class Judge(_Checker, frozen=True, tag="judge"):
    """A model says that the answer does what `wanted` says."""

    wanted: Text

    async def ask(self, answer: str, ask: Ask) -> bool:
        return await ask(self.wanted, answer)

    def fault(self) -> str | None:
        return None


Checker = Number | Regex | Json | Python | Judge


async def good(checker: Checker, answer: str, ask: Ask) -> bool:
    match checker:
        case Python() | Regex():
            return await checker.run(answer)
        case Judge():
            return await checker.ask(answer, ask)
        case _:
            return checker.check(answer)


def number(text: str) -> Decimal | None:
    """Of digits as people write them: with commas between thousands, with a sign of money."""
    try:
        return Decimal(text.translate({ord("$"): None, ord(","): None, ord("−"): "-"}))
    except InvalidOperation:
        return None


def inside_fence(answer: str) -> str:
    """The first fenced block of an answer, or all of it where there is none."""
    found = _FENCED.search(answer)
    return answer if found is None else found[1]


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON, where true is no number."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
