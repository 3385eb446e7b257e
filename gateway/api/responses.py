"""Bodies of `/v1/responses`: items, on top of what was said before."""

from typing import Annotated

import msgspec
from msgspec import Meta, structs

from backends.prompt import ChatMessage, Prompt, Tool, ToolChoice
from gateway.api import tools
from gateway.api.fields import ZERO, Off, OpenAIBody, Tokens, convert, without_off
from gateway.api.responses_items import Id, Item, Message, check_ids, items_only, result_fields, turns_of
from gateway.api.responses_tools import FIELDS, Tools, functions_only, tool_choice
from gateway.api.responses_tools import Choice as ToolChoices
from gateway.api.strictjson import decode_object, invalid
from gateway.api.structured import Text, TextFormat, grammar_of
from gateway.request import Request
from gateway.turns import to_messages
from sessions import Turn

OFF: Off = {
    "background": (False,),
    "context_management": (),
    "include": ([],),
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
    "prompt_cache_options": ({},),
    "prompt_cache_retention": ("in_memory",),
    "reasoning": ({}, {"effort": "none"}),
    "stream_options": ({}, {"include_obfuscation": False}),
    "top_logprobs": ZERO,
    "truncation": ("disabled",),
}
TEXT_OFF: Off = {"verbosity": ("medium",)}
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class ConversationReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Id


class TextOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: TextFormat = Text()


class ResponsesBody(OpenAIBody, frozen=True, kw_only=True):
    input: str | Annotated[list[Item], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Tokens | None = None
    metadata: Metadata = {}
    store: bool = True
    text: TextOptions = TextOptions()
    tools: Tools = []
    tool_choice: ToolChoices = "auto"
    parallel_tool_calls: bool = True
    previous_response_id: Id | None = None
    conversation: Id | ConversationReference | None = None

    @property
    def conversation_id(self) -> str | None:
        given = self.conversation
        return given.id if isinstance(given, ConversationReference) else given

    @property
    def items(self) -> list[Item]:
        return [Message(role="user", content=self.input)] if isinstance(self.input, str) else self.input

    @property
    def plain_tools(self) -> list[Tool]:
        return [tool.plain() for tool in self.tools]

    @property
    def choice(self) -> ToolChoice:
        return tool_choice(self.tool_choice, self.parallel_tool_calls)

    def to_prompt(self) -> Prompt:
        return self.prompt_after(())

    def prompt_after(self, history: tuple[Turn, ...]) -> Prompt:
        """The instructions stand before everything, and are no part of what was said."""
        said = to_messages((*history, *turns_of(self.items)))
        instructions = [] if self.instructions is None else [ChatMessage("system", self.instructions)]
        return tools.offering((*instructions, *said), self.plain_tools, self.choice)

    def sampled(self, request: Request) -> Request:
        return structs.replace(
            request,
            prompt_field="input",
            result_fields=result_fields(self.items, "input"),
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            grammar=grammar_of(self.text.format, "text.format"),
            grammar_field="text.format",
        )


def decode(data: bytes) -> ResponsesBody:
    """Raises ApiError 400 naming the field."""
    fields = functions_only(decode_object(data))
    fields["input"] = items_only(fields.get("input"), "input")
    if isinstance(text := fields.get("text"), dict):
        fields["text"] = without_off(text, TEXT_OFF, "text.")
    body = convert(fields, ResponsesBody, OFF)
    if body.previous_response_id is not None and body.conversation is not None:
        raise invalid(
            "previous_response_id", "not allowed beside conversation", "mutually_exclusive_parameters"
        )
    check_ids(body.items, "input")
    tools.check(body.plain_tools, body.choice, FIELDS)
    return body
