"""What is left out of schemas before a grammar is made of them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from backends.schemas import without_remarks

STAYS: list[Any] = [
    True,
    {"type": "string", "format": "date"},
    {"type": "string", "format": "regex"},  # no remark: what cannot be enforced is refused by name
    {"properties": {"format": {"type": "string"}, "const": {"type": "integer"}}},
    {"const": {"format": "path"}, "enum": [{"format": "path"}], "default": {"format": "path"}},
    {"required": ["format"], "items": [{"format": "uuid"}]},
    {"format": {"type": "string"}},
]


@pytest.mark.parametrize("schema", STAYS)
def test_what_asks_for_something_stays(schema: Any) -> None:
    assert without_remarks(schema) == schema


PATH, TEXT = {"type": "string", "format": "path"}, {"type": "string"}  # Pydantic's for a `pathlib.Path`


@pytest.mark.parametrize(
    "around",
    [
        lambda schema: schema,
        lambda schema: {"properties": {"const": schema, "format": schema}},
        lambda schema: {"$defs": {"a": {"additionalProperties": schema}}},
        lambda schema: {"anyOf": [{"items": schema}, {"prefixItems": [schema]}]},
    ],
)
def test_formats_that_are_not_defined_go(around: Callable[[Any], Any]) -> None:
    assert without_remarks(around(PATH)) == around(TEXT)


def test_too_deep_is_the_caller_s_affair() -> None:
    with pytest.raises(RecursionError):
        without_remarks(json.loads('{"items":' * 900 + "{}" + "}" * 900))
