"""The dialect of `/v1/chat/completions`."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, structs

from backends.backend import Delta
from backends.prompt import Option, Prompt, Tool, ToolChoice
from backends.tools.calls import joined
from gateway.api import chat_messages, chat_tools, tools
from gateway.api.chat_messages import AnyMessage, without_what_is_off
from gateway.api.chat_tools import Choice as ToolChoices
from gateway.api.chat_tools import Tools, call_pieces, tool_choice, whole_call
from gateway.api.dialect import Dialect, Finish
from gateway.api.fields import (
    GENERATION_OFF,
    GenerationBody,
    Off,
    Tokens,
    Top,
    convert_generation,
)
from gateway.api.logprobs import chat_logprobs, joined_scores
from gateway.api.rendering import Choice, ChoiceRendering
from gateway.api.strictjson import decode_object, invalid
from gateway.config import Tenant
from gateway.request import Request

CHAT_OFF: Off = {
    **GENERATION_OFF,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}


# What templates are given in any case, and so is not the client's to say.
OURS = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
OptionName = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]{0,63}$")]


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    messages: Annotated[list[AnyMessage], Meta(min_length=1)]
    tools: Tools = []
    tool_choice: ToolChoices = "auto"
    parallel_tool_calls: bool = True
    max_completion_tokens: Tokens | None = None
    logprobs: bool = False
    top_logprobs: Top = 0
    chat_template_kwargs: Annotated[dict[OptionName, Option], Meta(max_length=16)] = {}  # vLLM's extension

    @property
    def told_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def to_prompt(self) -> Prompt:
        messages = tuple(message.plain() for message in self.messages)
        prompt = tools.offering(messages, self.plain_tools, self.choice)
        return msgspec.structs.replace(prompt, options=self.chat_template_kwargs)

    @property
    def plain_tools(self) -> list[Tool]:
        return [tool.plain() for tool in self.tools]

    @property
    def choice(self) -> ToolChoice:
        return tool_choice(self.tool_choice, self.parallel_tool_calls)

    def sampled(self, request: Request) -> Request:
        return structs.replace(
            super().sampled(request), result_fields=chat_messages.result_fields(self.messages)
        )


class ChatRendering(ChoiceRendering):
    """`tools`: whether there are any to call; then an answer may have no text, and `content` is null."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, n: int, include_usage: bool, *, scored: bool, tools: bool = False) -> None:
        super().__init__(n, include_usage, scored=scored)
        self._tools = tools

    def begun(self, index: int) -> Choice:
        return _part(index, {"role": "assistant", "content": None if self._tools else ""})

    def more(self, delta: Delta) -> Choice:
        told: dict[str, Any] = {"content": delta.text} if delta.text or not delta.calls else {}
        if delta.calls:
            told["tool_calls"] = call_pieces(delta.calls)
        logprobs = chat_logprobs(delta.scores) if delta.scores else None
        return _part(delta.index, told) | {"logprobs": logprobs}

    def ended(self, index: int, finish: Finish) -> Choice:
        return _part(index, {}) | {"finish_reason": finish}

    def choice(self, index: int, deltas: Sequence[Delta], finish: Finish) -> Choice:
        text = "".join(delta.text for delta in deltas)
        content = None if self._tools and not text else text
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls := joined(piece for delta in deltas for piece in delta.calls):
            message["tool_calls"] = [whole_call(call) for call in calls]
        return {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(joined_scores(deltas)) if self.scored else None,
            "finish_reason": finish,
        }


class Chat(Dialect[ChatBody, ChatRendering]):
    endpoint = "chat"

    def decode(self, data: bytes) -> ChatBody:
        return decode(data)

    async def open(self, body: ChatBody, tenant: Tenant) -> tuple[Prompt, ChatRendering]:
        scored = body.told_logprobs is not None
        return body.to_prompt(), ChatRendering(
            body.n, body.include_usage, scored=scored, tools=bool(body.tools)
        )


def _part(index: int, delta: dict[str, Any]) -> Choice:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def decode(data: bytes) -> ChatBody:
    """Raises ApiError 400 naming the field."""
    fields = decode_object(data)
    fields["messages"] = without_what_is_off(fields.get("messages"))
    body = convert_generation(fields, ChatBody, CHAT_OFF)
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.most_tokens:
        raise invalid("max_tokens", "differs from max_completion_tokens")
    for name in body.chat_template_kwargs:
        if name in OURS or name.endswith("_token"):
            raise invalid(f"chat_template_kwargs.{name}", "is given to the template by the server")
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs", "only allowed where logprobs is true")
    chat_messages.check(body.messages)
    tools.check(body.plain_tools, body.choice, chat_tools.FIELDS)
    return body
