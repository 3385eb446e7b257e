"""A model's chat template: a conversation to the text that the model was trained on.

Templates are jinja2, as Hugging Face's tools render them (same whitespace rules, same names in scope). They come from
model folders that the operator trusts, and run in jinja2's sandbox all the same: no attribute of Python's internals,
no change of what they are given, no output out of proportion, and an end after some seconds. The sandbox does not
stop one expression from being large; a model folder is not to be taken from a stranger.
"""

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import msgspec
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from backends.prompt import MAX_DEPTH, ChatMessage, Tool, ToolCall, deeper_than

SECONDS = 5.0  # for rendering one conversation
# Most characters of output: so many times those of the conversation, and so many more.
GROWTH, ALLOWANCE = (4, 1 << 20)


Fields = Mapping[str, Any]


class TemplateError(ValueError):
    """The chat template refuses this conversation; the message is the template's own."""


class ChatTemplate:
    """`tokens` are the names that Hugging Face gives a template: bos_token, eos_token and the like."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        """Raises ValueError where the template is not valid jinja2."""
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(
                f"the chat template is not valid (line {error.lineno}): {error.message}"
            ) from error
        self._tokens = dict(tokens)

    def render(
        self, messages: Sequence[Fields], tools: Sequence[Fields] = (), options: Fields | None = None
    ) -> str:
        """The conversation up to where the assistant is to speak. Raises TemplateError.

        `messages` and `tools`: as `message_fields` and `tool_fields` make them. `options`: see `Prompt`.

        Whatever goes wrong in a template that compiled is caused by the conversation it was given, such as roles
        that do not alternate, so each such error is a refusal.
        """
        scope = {
            **(options or {}),
            "messages": messages,
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": True,
        }
        limit = GROWTH * len(msgspec.json.encode([messages, tools, options])) + ALLOWANCE
        deadline = time.monotonic() + SECONDS
        pieces, size = [], 0
        try:
            for piece in self._template.generate(scope | self._tokens):
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    raise TemplateError(
                        f"the chat template makes more than {limit} characters of this conversation"
                    )
                if time.monotonic() > deadline:
                    raise TemplateError(
                        f"the chat template takes more than {SECONDS:g} s for this conversation"
                    )
        except TemplateError:
            raise
        except jinja2.TemplateError as error:
            raise TemplateError(error.message or type(error).__name__) from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise TemplateError(f"the chat template cannot render this conversation: {error}") from error
        return "".join(pieces)


def message_fields(message: ChatMessage) -> dict[str, Any]:
    """A message in the shape that templates are written for."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_calls:
        fields["tool_calls"] = [_call_fields(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def _call_fields(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": _arguments(call.arguments)},
    }


def _arguments(text: str) -> Any:
    """An object, where the model has written one; templates turn it into JSON again. Else the text as it is."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return text
    sound = isinstance(arguments, dict) and not deeper_than(arguments, MAX_DEPTH)
    return arguments if sound else text


def tool_fields(tool: Tool) -> dict[str, Any]:
    """A tool in the shape that templates are written for, which is OpenAI's."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


class _Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training; rendering ignores the mark."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """jinja2's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
