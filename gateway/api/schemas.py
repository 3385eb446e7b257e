"""What is wrong with a JSON schema, where no grammar would tell: that its values never end."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

ENDLESS = "nothing satisfies it: each value would have to hold another one, without end"
VISITS = 2_000  # of parts of a schema; what has more of them is taken to be right


def endless(schema: Mapping[str, Any]) -> bool:
    """Whether each of its values would have to hold another one of the same schema, and so on.

    The usual slip is a class with a member of its own kind that is not optional. References into other documents, or
    to nothing, are not judged.
    """
    return not _Search(schema).ends()


class _Search:
    """For the references whose values can end: those with an end in themselves, then those that need only them."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._references = {"#": None}  # a set that keeps its order
        self._ending: set[str] = set()
        self._visits = 0

    def ends(self) -> bool:
        known = -1
        while known < len(self._references) + len(self._ending):
            known = len(self._references) + len(self._ending)
            for reference in tuple(self._references):
                if reference not in self._ending and self._ends(_target(self._schema, reference)):
                    self._ending.add(reference)
        return "#" in self._ending

    def _ends(self, part: Any) -> bool:
        self._visits += 1
        if not isinstance(part, Mapping) or self._visits > VISITS:
            return True
        if not self._refers_to_an_end(part.get("$ref")):
            return False
        if "const" in part or "enum" in part:
            return True
        if not all(self._ends(each) for each in _listed(part, "allOf")):
            return False
        for choice in ("anyOf", "oneOf"):
            if (among := _listed(part, choice)) and not any(self._ends(each) for each in among):
                return False
        return all(self._ends(each) for each in _needed(part))

    def _refers_to_an_end(self, reference: Any) -> bool:
        if not isinstance(reference, str) or _target(self._schema, reference) is None:
            return True
        self._references[reference] = None
        return reference in self._ending


def _needed(part: Mapping[str, Any]) -> Sequence[Any]:
    """The schemas of what a value must hold, where it has to be an object or an array."""
    if part.get("type") in ("object", ["object"]):
        properties = part.get("properties")
        named = properties if isinstance(properties, Mapping) else {}
        return [named[name] for name in _listed(part, "required") if isinstance(name, str) and name in named]
    if part.get("type") in ("array", ["array"]) and isinstance(least := part.get("minItems"), int):
        first = _listed(part, "prefixItems")[: max(least, 0)]
        return [*first, part.get("items")] if least > len(first) else first
    return []


def _listed(part: Mapping[str, Any], name: str) -> list[Any]:
    value = part.get(name)
    return value if isinstance(value, list) else []


def _target(schema: Mapping[str, Any], reference: str) -> Any:
    """What a JSON pointer (RFC 6901) points to in this document; None where that is nothing."""
    if reference == "#":
        return schema
    if not reference.startswith("#/"):
        return None
    target: Any = schema
    for step in unquote(reference[2:]).split("/"):
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and step.isdecimal() and int(step) < len(target):
            target = target[int(step)]
        elif isinstance(target, Mapping) and step in target:
            target = target[step]
        else:
            return None
    return target
