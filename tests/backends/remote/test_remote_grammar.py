"""Grammars in the words of each kind of server."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from backends.backend import Generation, Rejected, Sampling
from backends.remote_request import KINDS, compose
from backends.wire import Grammar

Make = Callable[..., Generation]
SCHEMA = {"type": "object", "properties": {"z": {"type": "null"}, "a": {}}}
GRAMMARS = {
    "object": Grammar("json_schema", '{"type":"object"}'),
    "schema": Grammar("json_schema", json.dumps(SCHEMA)),
    "regex": Grammar("regex", "a|b"),
    "lark": Grammar("lark", 'start: "a"'),
}
STRICT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
ANY = {"type": "json_object"}
CHATS: list[tuple[str, str, dict[str, Any]]] = [
    ("vllm", "object", {"structured_outputs": {"json": {"type": "object"}}}),
    ("vllm", "schema", {"structured_outputs": {"json": SCHEMA}}),
    ("vllm", "regex", {"structured_outputs": {"regex": "a|b"}}),
    ("vllm", "lark", {"structured_outputs": {"grammar": 'start: "a"'}}),
    ("sglang", "object", {"response_format": ANY}),
    ("sglang", "schema", {"response_format": STRICT}),
    ("sglang", "regex", {"regex": "a|b"}),
    ("lmdeploy", "object", {"response_format": ANY}),
    ("lmdeploy", "schema", {"response_format": STRICT}),
    ("lmdeploy", "regex", {"response_format": {"type": "regex_schema", "regex_schema": "a|b"}}),
    ("tgi", "object", {"response_format": {"type": "json", "value": {"type": "object"}}}),
    ("tgi", "schema", {"response_format": {"type": "json", "value": SCHEMA}}),
    ("tgi", "regex", {"response_format": {"type": "regex", "value": "a|b"}}),
    ("openai", "object", {"response_format": ANY}),
    ("openai", "schema", {"response_format": STRICT}),
]
TEXTS = [(kind, name, fields) for kind, name, fields in CHATS if kind in ("vllm", "sglang")]


def sampling(name: str) -> Sampling:
    return Sampling(max_tokens=16, grammar=GRAMMARS[name])


@pytest.mark.parametrize(("kind", "name", "fields"), CHATS)
def test_a_chat(generation: Make, kind: str, name: str, fields: dict[str, Any]) -> None:
    _, plain = compose(KINDS[kind], "big", generation())
    _, body = compose(KINDS[kind], "big", generation(sampling=sampling(name)))
    asked = {field: value for field, value in body.items() if field not in plain}
    assert asked == fields
    assert json.dumps(asked) == json.dumps(fields), "properties keep their order"


@pytest.mark.parametrize(("kind", "name", "fields"), TEXTS)
def test_a_completion(generation: Make, kind: str, name: str, fields: dict[str, Any]) -> None:
    _, body = compose(KINDS[kind], "big", generation("Once", sampling=sampling(name)))
    assert {field: body[field] for field in fields} == fields


def test_what_a_kind_cannot_do_is_refused_by_name(generation: Make) -> None:
    for chat, known in ((True, CHATS), (False, TEXTS)):
        able = {(kind, name) for kind, name, _ in known}
        for kind, name in {(kind, name) for kind in KINDS for name in GRAMMARS} - able:
            with pytest.raises(Rejected, match="^grammar: ") as error:
                compose(KINDS[kind], "big", generation(None if chat else "Once", sampling=sampling(name)))
            assert error.value.code == "unsupported_parameter"
