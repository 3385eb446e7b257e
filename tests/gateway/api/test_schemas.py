"""Schemas whose values never end."""

import time
from typing import Any

import pytest
from pydantic import BaseModel

from gateway.api.schemas import endless


class Node(BaseModel):
    child: "Node"


class Tree(BaseModel):
    children: "list[Tree]"
    parent: "Tree | None" = None


class Chain(BaseModel):
    link: "Chain | int"


def needs(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


SELF, A, B = {"$ref": "#"}, {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b~1c"}
ENDLESS: list[dict[str, Any]] = [
    Node.model_json_schema(),
    SELF,
    needs(x=SELF),
    {"type": "array", "items": SELF, "minItems": 1},
    {"type": "array", "prefixItems": [{}, SELF], "minItems": 2},
    {"anyOf": [needs(x=SELF), needs(y=SELF)]},
    {"allOf": [{}, needs(x=SELF)]},
    {"$ref": "#/$defs/a", "$defs": {"a": needs(x=B), "b/c": needs(x={"oneOf": [A, B]})}},
    needs(x={"type": "array", "items": [1], "minItems": 1, "$ref": "#"}),
]
ENDING: list[dict[str, Any]] = [
    {},
    Tree.model_json_schema(),
    Chain.model_json_schema(),
    {"type": "object", "properties": {"x": SELF}},
    {"type": "array", "items": SELF},
    {"type": "array", "prefixItems": [{}, SELF], "minItems": 1},
    {"properties": {"x": SELF}, "required": ["x"]},  # a number will do
    {"anyOf": [needs(x=SELF), {"type": "null"}]},
    {"type": "object", "required": ["x"]},
    needs(x={"$ref": "#/$defs/a"}, y={"$ref": "https://example.org/a.json"}),
    {"$ref": "#/$defs/a", "$defs": {"a": needs(x=B), "b/c": needs(x={"oneOf": [A, {"const": 1}]})}},
    {"type": "object", "properties": [1], "required": "x", "allOf": 3, "$ref": 7, "enum": []},
    {"type": ["object"], "properties": {"x": SELF}, "required": ["x", 3], "const": {}},
]


@pytest.mark.parametrize("schema", ENDLESS)
def test_a_value_that_must_hold_another_of_its_kind_never_ends(schema: dict[str, Any]) -> None:
    assert endless(schema)


@pytest.mark.parametrize("schema", ENDING)
def test_what_may_end_is_left_alone(schema: dict[str, Any]) -> None:
    assert not endless(schema)


def test_a_chain_of_references_is_followed_in_any_order() -> None:
    names = [f"d{n}" for n in range(20)]
    links = {
        name: needs(x={"$ref": f"#/$defs/{after}"}) for name, after in zip(names, names[1:], strict=False)
    }
    for order in (1, -1):
        defs = dict(list(links.items())[::order])
        assert not endless({"$ref": "#/$defs/d0", "$defs": {**defs, "d19": {"type": "null"}}})
        assert endless({"$ref": "#/$defs/d0", "$defs": {**defs, "d19": needs(x={"$ref": "#/$defs/d0"})}})


def test_no_schema_takes_long() -> None:
    """What is too large to be gone through counts as right."""
    links = {f"d{n}": needs(x={"$ref": f"#/$defs/d{(n + 1) % 5000}"}) for n in range(5000)}
    before = time.process_time()
    assert not endless({"$ref": "#/$defs/d0", "$defs": links})
    assert time.process_time() - before < 1
