"""What a request about tools asks of the sampling: a grammar for calls that must be, an end behind the only one, none.

Grammars are llguidance's dialect of Lark, with the functions' schemas embedded. White space is the one of the calls in
the model's training, which is Python's.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from backends.prompt import Prompt, Tool
from backends.schemas import without_remarks
from backends.tools.formats import ToolFormat
from backends.wire import WHITESPACE, Grammar, Sampling

BAN = -100.0  # the bias that OpenAI documents as a ban
SPACING = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class Unconstrainable(ValueError):
    """The request asks for two things at once that no grammar here can hold together. Begins with a field's name."""


def constrained(
    sampling: Sampling, prompt: Prompt, form: ToolFormat, id_of: Callable[[str], int | None]
) -> Sampling:
    """`sampling` so that calls of the prompt's tools come as it wants them.

    `id_of`: the id of a token by its name, None for what is no token. Raises Unconstrainable.
    """
    choice = prompt.tool_choice
    if choice.mode == "none":
        return _banned(sampling, id_of(form.begin))
    grammar = _grammar(sampling.grammar, prompt, form)
    ends, end = sampling.stop_token_ids, id_of(form.end)
    if not choice.parallel and end is not None:
        ends = (*ends, end)
    return msgspec.structs.replace(sampling, grammar=grammar, stop_token_ids=ends)


def _banned(sampling: Sampling, mark: int | None) -> Sampling:
    """Tools stay in the prompt, so that the cached conversation stays valid; a call cannot begin."""
    if mark is None:
        return sampling
    return msgspec.structs.replace(sampling, logit_bias={**sampling.logit_bias, mark: BAN})


def _grammar(asked: Grammar | None, prompt: Prompt, form: ToolFormat) -> Grammar | None:
    """`asked`: for the answer's text; where a call is required there is none."""
    choice, tools = prompt.tool_choice, prompt.callable_tools
    if choice.mode == "required":
        many = choice.parallel and choice.name is None
        return calls_grammar(tools, form, many=many)
    if asked is not None:
        return _calls_or(asked, tools, form, many=choice.parallel)
    if len(tools) < len(prompt.tools) or any(tool.strict for tool in tools):
        return strict_grammar(tools, form, many=choice.parallel)
    return None


def calls_grammar(tools: Sequence[Tool], form: ToolFormat, *, many: bool) -> Grammar:
    """One call, or with `many` one or more, of these tools, and nothing else."""
    return _lark("start: calls", *_calls(tools, form, many=many, begin=form.begin))


def strict_grammar(tools: Sequence[Tool], form: ToolFormat, *, many: bool) -> Grammar:
    """Any text, with calls in it: from a mark on it is one of these tools' calls.

    A lexeme that ends in the mark as soon as there is one, and another for text in which there is none.
    """
    if not form.begin:
        return _lark(
            "start: calls | PLAIN?", r"PLAIN: /\s*[^{\s](?s:.*)/", *_calls(tools, form, many=False, begin="")
        )
    call, *rules = _calls(tools, form, many=False, begin="")
    start = f"start: (to_call body){'*' if many else '?'} PLAIN?"
    mark = json.dumps(form.begin)
    return _lark(
        start,
        f"to_call[suffix={mark}]: /(?s:.*)/",
        f"PLAIN: /(?s:.*)/ & ~/(?s:.*){_literal(form.begin)}(?s:.*)/",
        call.replace("calls", "body", 1),
        *rules,
    )


def _calls_or(asked: Grammar, tools: Sequence[Tool], form: ToolFormat, *, many: bool) -> Grammar:
    if asked.kind != "json_schema":
        raise Unconstrainable(
            "tools: cannot stand beside this constraint of the text; only a JSON schema can be"
        )
    return _lark(
        "start: calls | text",
        f"text: %json {_without_endless_blanks(asked.source)}",
        *_calls(tools, form, many=many, begin=form.begin),
    )


def _without_endless_blanks(schema: str) -> str:
    """As where there are no tools: with our white space, unless the schema has its own. Raises Unconstrainable."""
    try:
        asked = without_remarks(json.loads(schema))
        return json.dumps({"x-guidance": {"whitespace_pattern": WHITESPACE}, **asked})
    except RecursionError:
        raise Unconstrainable("tools: cannot stand beside a schema that is nested so deeply") from None


def _calls(tools: Sequence[Tool], form: ToolFormat, *, many: bool, begin: str) -> list[str]:
    """Rules: `calls`, and what it is made of."""
    again = f" ({json.dumps(form.between)} call)*" if many and form.begin else ""
    bodies = " | ".join(f"call_{n}" for n in range(len(tools)))
    return [
        f"calls: call{again}",
        f"call: {_text(begin + form.before)}({bodies}){_text(form.after + form.end)}",
        *(f"call_{n}: {_head(tool, form)} arguments_{n} {json.dumps('}')}" for n, tool in enumerate(tools)),
        *(f"arguments_{n}: %json {_schema(tool)}" for n, tool in enumerate(tools)),
    ]


def _text(mark: str) -> str:
    return f" {json.dumps(mark)} " if mark else ""


def _head(tool: Tool, form: ToolFormat) -> str:
    return json.dumps(f'{{"name": {json.dumps(tool.name)}, "{form.key}": ')


def _schema(tool: Tool) -> str:
    schema = NOTHING if tool.parameters is None else without_remarks(tool.parameters)
    return json.dumps({"type": "object", **schema, "x-guidance": SPACING})


def _literal(mark: str) -> str:
    """In a regular expression between slashes."""
    return "".join(f"\\{c}" if c in r"/\.+*?()|[]{}^$" else c for c in mark)


def _lark(*rules: str) -> Grammar:
    return Grammar(kind="lark", source="\n".join(rules))
