"""Answers as objects of the Responses API, whole and as its typed events."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from backends.backend import Delta, Usage
from gateway.api.dialect import Chunk, Ending, Rendering
from gateway.api.responses import ResponsesBody, told_part
from gateway.archive import new_id
from gateway.errors import ApiError
from gateway.request import Answer


class ResponseRendering(Rendering):
    """A response with one message of text.

    `response`: the object as it stands, None before the answer has begun; `text`: what has been said of the answer.
    """

    def __init__(self, body: ResponsesBody) -> None:
        self.response: Chunk | None = None
        self.text = ""
        self._body = body
        self._item_id = new_id("msg")
        self._told = 0

    @property
    def complete(self) -> bool:
        return self.response is not None and self.response["status"] in ("completed", "incomplete")

    def opening(self, answer: Answer) -> Sequence[Chunk]:
        response = self._begin(answer)
        item = {**self._message("in_progress"), "content": []}
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
            self._event("response.output_item.added", output_index=0, item=item),
            self._part_event("response.content_part.added", part=told_part("output_text", "")),
        ]

    def piece(self, delta: Delta) -> Sequence[Chunk]:
        self.text += delta.text
        return [self._part_event("response.output_text.delta", delta=delta.text, logprobs=[])]

    def closing(self, ending: Ending) -> Sequence[Chunk]:
        response = self._conclude(ending)
        item = response["output"][0]
        return [
            self._part_event("response.output_text.done", text=self.text, logprobs=[]),
            self._part_event("response.content_part.done", part=item["content"][0]),
            self._event("response.output_item.done", output_index=0, item=item),
        ]

    def farewell(self) -> Sequence[Chunk]:
        assert self.response is not None
        return [self._event(f"response.{self.response['status']}", response=self.response)]

    def broken(self, error: ApiError) -> Sequence[Chunk]:
        told = {"code": error.code, "message": error.message, "param": error.param}
        events = [self._event("error", **told)]
        if self.response is not None:
            failure = {
                "code": "server_error",
                "message": error.message,
            }  # the only code of OpenAI's that is true
            events.append(self._event("response.failed", response=self.cut("failed", failure)))
        return events

    def whole(self, answer: Answer, deltas: Sequence[Delta], ending: Ending) -> Chunk:
        self._begin(answer)
        self.text = "".join(delta.text for delta in deltas)
        return self._conclude(ending)

    def cut(self, status: str, error: Chunk | None = None) -> Chunk:
        """The response, its answer ended before it was complete."""
        assert self.response is not None
        self.response |= {"status": status, "error": error, "output": [self._message("incomplete")]}
        return self.response

    def _begin(self, answer: Answer) -> Chunk:
        self.response = {
            "id": new_id("resp"),
            "object": "response",
            "created_at": answer.created,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": answer.tier,
            "output": [],
            **_echo(self._body),
        }
        return self.response

    def _conclude(self, ending: Ending) -> Chunk:
        assert self.response is not None
        if ending.finish == "length":
            status, details = "incomplete", {"reason": "max_output_tokens"}
        else:
            status, details = "completed", None
            self.response["completed_at"] = int(time.time())
        self.response |= {
            "status": status,
            "incomplete_details": details,
            "output": [self._message(status)],
            "usage": _usage(ending.usage),
        }
        return self.response

    def _message(self, status: str) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [told_part("output_text", self.text)],
        }

    def _part_event(self, kind: str, **fields: Any) -> Chunk:
        return self._event(kind, item_id=self._item_id, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> Chunk:
        event = {"type": kind, "sequence_number": self._told, **fields}
        self._told += 1
        return event


def _echo(body: ResponsesBody) -> Chunk:
    """What was asked, with what is the case where nothing else can be asked. No user: its place takes no null."""
    conversation = body.conversation_id
    return {
        "background": False,
        "conversation": None if conversation is None else {"id": conversation},
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata,
        "parallel_tool_calls": True,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "safety_identifier": body.safety_identifier,
        "service_tier": "flex" if body.service_tier == "flex" else "default",
        "store": body.store,
        "temperature": body.temperature,
        "text": {"format": msgspec.to_builtins(body.text.format)},
        "tool_choice": "auto",
        "tools": [],
        "top_p": body.top_p,
        "truncation": "disabled",
        **({} if body.user is None else {"user": body.user}),
    }


def _usage(usage: Usage) -> Chunk:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
