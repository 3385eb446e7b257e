"""How kinds of remote servers are asked to hold an answer to a grammar, for chats and for completions.

From the request types of vLLM 0.33, SGLang 0.5, LMDeploy 0.9 and TGI 3; where a kind has nothing, None. Lark is
llguidance's own, which of these only vLLM may be running.
"""

import json
from collections.abc import Callable
from typing import Any

from backends.wire import Grammar

Form = Callable[[Grammar, bool], dict[str, Any] | None]
"""Fields of the body for a grammar; whether it is a chat."""


def nothing(grammar: Grammar, chat: bool) -> None:
    return None


def structured_outputs(grammar: Grammar, chat: bool) -> dict[str, Any]:
    """vLLM."""
    match grammar.kind:
        case "json_schema":
            return {"structured_outputs": {"json": json.loads(grammar.source)}}
        case "regex":
            return {"structured_outputs": {"regex": grammar.source}}
        case "lark":
            return {"structured_outputs": {"grammar": grammar.source}}


def response_format_or_regex(grammar: Grammar, chat: bool) -> dict[str, Any] | None:
    """SGLang."""
    return {"regex": grammar.source} if grammar.kind == "regex" else response_format(grammar, chat=True)


def regex_schema(grammar: Grammar, chat: bool) -> dict[str, Any] | None:
    """LMDeploy, for chats alone."""
    if chat and grammar.kind == "regex":
        return {"response_format": {"type": "regex_schema", "regex_schema": grammar.source}}
    return response_format(grammar, chat)


def typed_value(grammar: Grammar, chat: bool) -> dict[str, Any] | None:
    """TGI, for chats alone."""
    if not chat or grammar.kind == "lark":
        return None
    if grammar.kind == "regex":
        return {"response_format": {"type": "regex", "value": grammar.source}}
    return {"response_format": {"type": "json", "value": json.loads(grammar.source)}}


def response_format(grammar: Grammar, chat: bool) -> dict[str, Any] | None:
    """OpenAI's, for chats alone. Strict, for else the schema is only a wish there."""
    if not chat or grammar.kind != "json_schema":
        return None
    schema = json.loads(grammar.source)
    if schema == {"type": "object"}:
        return {"response_format": {"type": "json_object"}}
    named = {"name": "answer", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}
