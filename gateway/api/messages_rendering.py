"""Answers in Anthropic's shapes."""

from collections.abc import Sequence
from typing import Any

from backends.backend import Delta, Usage
from gateway.api.dialect import Chunk, Ending, Rendering
from gateway.errors import ApiError, anthropic_error
from gateway.request import Answer

NOTHING_USED = Usage(prompt_tokens=0, completion_tokens=0)


class MessageRendering(Rendering):
    """A message with one block of text."""

    def opening(self, answer: Answer) -> Sequence[Chunk]:
        """What was used is told once, at the end, where it is known: there counts are totals, and replace these."""
        message = _message(answer, content=[], usage=_usage(NOTHING_USED), stop_reason=None)
        return [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": _text("")},
            {"type": "ping"},
        ]

    def piece(self, delta: Delta) -> Sequence[Chunk]:
        added = {"type": "text_delta", "text": delta.text}
        return [{"type": "content_block_delta", "index": 0, "delta": added}]

    def closing(self, ending: Ending) -> Sequence[Chunk]:
        delta = {"stop_reason": _stop_reason(ending), "stop_sequence": ending.stopped_by}
        return [
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": delta, "usage": _usage(ending.usage)},
        ]

    def farewell(self) -> Sequence[Chunk]:
        return [{"type": "message_stop"}]

    def broken(self, error: ApiError) -> Sequence[Chunk]:
        return [anthropic_error(error)]

    def whole(self, answer: Answer, deltas: Sequence[Delta], ending: Ending) -> Chunk:
        return _message(
            answer,
            content=[_text("".join(delta.text for delta in deltas))],
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


def _stop_reason(ending: Ending) -> str:
    if ending.finish == "length":
        return "max_tokens"
    return "end_turn" if ending.stopped_by is None else "stop_sequence"


def _usage(usage: Usage) -> Chunk:
    """The three kinds of input tokens add up to the prompt; what is cached here costs nothing to write."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
