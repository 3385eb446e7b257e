"""Answers in Anthropic's shapes."""

from collections.abc import Sequence
from typing import Any

import msgspec

from backends.backend import Delta, Usage
from gateway.api.dialect import Chunk, Ending
from gateway.api.parts import CallPart, Part, PartsRendering
from gateway.errors import ApiError, anthropic_error
from gateway.request import Answer

NOTHING_USED = Usage(prompt_tokens=0, completion_tokens=0)


class MessageRendering(PartsRendering):
    """A message, whose blocks are the parts of its answer."""

    def opening(self, answer: Answer) -> Sequence[Chunk]:
        """What was used is told once, at the end, where it is known: there counts are totals, and replace these."""
        message = _message(answer, content=[], usage=_usage(NOTHING_USED), stop_reason=None)
        return [{"type": "message_start", "message": message}, {"type": "ping"}]

    def begun(self, part: Part) -> Sequence[Chunk]:
        block = _call(part, {}) if isinstance(part, CallPart) else _text("")
        return [{"type": "content_block_start", "index": part.number, "content_block": block}]

    def added(self, part: Part, written: str) -> Chunk:
        if isinstance(part, CallPart):
            delta = {"type": "input_json_delta", "partial_json": written}
        else:
            delta = {"type": "text_delta", "text": written}
        return {"type": "content_block_delta", "index": part.number, "delta": delta}

    def ended(self, part: Part) -> Sequence[Chunk]:
        return [{"type": "content_block_stop", "index": part.number}]

    def closing(self, ending: Ending) -> Sequence[Chunk]:
        delta = {"stop_reason": _stop_reason(ending), "stop_sequence": ending.stopped_by}
        last = {"type": "message_delta", "delta": delta, "usage": _usage(ending.usage)}
        return [*self.last_ended(), last]

    def farewell(self) -> Sequence[Chunk]:
        return [{"type": "message_stop"}]

    def broken(self, error: ApiError) -> Sequence[Chunk]:
        return [anthropic_error(error)]

    def whole(self, answer: Answer, deltas: Sequence[Delta], ending: Ending) -> Chunk:
        self.hear(deltas)
        self.last_part()
        return _message(
            answer,
            content=[_block(part) for part in self.parts],
            usage=_usage(ending.usage),
            stop_reason=_stop_reason(ending),
            stop_sequence=ending.stopped_by,
        )


def _message(
    answer: Answer,
    *,
    content: list[Chunk],
    usage: Chunk,
    stop_reason: str | None,
    stop_sequence: str | None = None,
) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.tier,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": usage,
    }


def _text(text: str) -> Chunk:
    return {"type": "text", "text": text}


def _block(part: Part) -> Chunk:
    if isinstance(part, CallPart):
        return _call(part, _input(part.written))
    return _text(part.written)


def _call(part: CallPart, given: Chunk) -> Chunk:
    return {"type": "tool_use", "id": part.id, "name": part.name, "input": given}


def _input(arguments: str) -> Chunk:
    """Where a model wrote no JSON object, or was cut off, the text under the name that Anthropic gives such inputs.

    See "Fine-grained tool streaming" in Anthropic's documentation.
    """
    try:
        given = msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {"INVALID_JSON": arguments} if arguments else {}
    return given


def _stop_reason(ending: Ending) -> str:
    if ending.finish == "length":
        return "max_tokens"
    if ending.finish == "tool_calls":
        return "tool_use"
    return "end_turn" if ending.stopped_by is None else "stop_sequence"


def _usage(usage: Usage) -> Chunk:
    """The three kinds of input tokens add up to the prompt; what is cached here costs nothing to write."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
