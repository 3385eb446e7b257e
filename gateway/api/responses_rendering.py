"""Answers as objects of the Responses API, whole and as its typed events."""

import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from backends.backend import Delta, Usage
from gateway.api.dialect import Chunk, Ending
from gateway.api.parts import CallPart, Part, PartsRendering
from gateway.api.responses import ResponsesBody
from gateway.api.responses_items import told_call, told_message, told_part
from gateway.errors import ApiError
from gateway.request import Answer


class ResponseRendering(PartsRendering):
    """A response, whose items are the parts of its answer.

    `response`: the object as it stands, None before the answer has begun; `pieces`: of what was streamed, for each
    piece its output item and its characters.
    """

    def __init__(self, body: ResponsesBody) -> None:
        super().__init__()
        self.response: Chunk | None = None
        self._body = body
        self._id = secrets.token_hex(16)
        self._told = 0
        self.pieces: list[tuple[int, int]] = []

    @property
    def complete(self) -> bool:
        return self.response is not None and self.response["status"] in ("completed", "incomplete")

    def opening(self, answer: Answer) -> Sequence[Chunk]:
        response = self._begin(answer)
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def begun(self, part: Part) -> Sequence[Chunk]:
        item = self._item(part, "in_progress")
        if isinstance(part, CallPart):
            return [self._item_event("response.output_item.added", part, {**item, "arguments": ""})]
        return [
            self._item_event("response.output_item.added", part, {**item, "content": []}),
            self._text_event("response.content_part.added", part, part=told_part("output_text", "")),
        ]

    def added(self, part: Part, written: str) -> Chunk:
        if isinstance(part, CallPart):
            return self._part_event("response.function_call_arguments.delta", part, delta=written)
        return self._text_event("response.output_text.delta", part, delta=written, logprobs=[])

    def ended(self, part: Part) -> Sequence[Chunk]:
        """The last part is incomplete where the response is; those before it never are."""
        item = self._item(part, self._status(part))
        if isinstance(part, CallPart):
            whole = {"name": part.name, "arguments": part.written}
            done = [self._part_event("response.function_call_arguments.done", part, **whole)]
        else:
            done = [
                self._text_event("response.output_text.done", part, text=part.written, logprobs=[]),
                self._text_event("response.content_part.done", part, part=item["content"][0]),
            ]
        return [*done, self._item_event("response.output_item.done", part, item)]

    def closing(self, ending: Ending) -> Sequence[Chunk]:
        self._conclude(ending)
        return self.last_ended()

    def farewell(self) -> Sequence[Chunk]:
        assert self.response is not None
        return [self._event(f"response.{self.response['status']}", response=self.response)]

    def broken(self, error: ApiError) -> Sequence[Chunk]:
        told = {"code": error.code, "message": error.message, "param": error.param}
        events = [self._event("error", **told)]
        if self.response is not None:
            # The only code of OpenAI's that is true.
            failure = {"code": "server_error", "message": error.message}
            events.append(self._event("response.failed", response=self.cut("failed", failure)))
        return events

    def whole(self, answer: Answer, deltas: Sequence[Delta], ending: Ending) -> Chunk:
        self._begin(answer)
        self.hear(deltas)
        return self._conclude(ending)

    def cut(self, status: str, error: Chunk | None = None) -> Chunk:
        """The response, its answer ended before it was complete."""
        assert self.response is not None
        self.response |= {"status": status, "error": error}
        self.response["output"] = self._output()
        return self.response

    def _begin(self, answer: Answer) -> Chunk:
        self.response = {
            "id": f"resp_{self._id}",
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
        self.response |= {"status": status, "incomplete_details": details, "usage": _usage(ending.usage)}
        self.last_part()
        self.response["output"] = self._output()
        return self.response

    def _output(self) -> list[dict[str, Any]]:
        return [self._item(part, self._status(part)) for part in self.parts]

    def _status(self, part: Part) -> str:
        assert self.response is not None
        whole = self.response["status"] == "completed" or part is not self.parts[-1]
        return "completed" if whole else "incomplete"

    def _item(self, part: Part, status: str) -> dict[str, Any]:
        if isinstance(part, CallPart):
            return told_call(self._item_id(part), part.call, status)
        return told_message(
            self._item_id(part), "assistant", [told_part("output_text", part.written)], status
        )

    def _item_id(self, part: Part) -> str:
        kind = "fc" if isinstance(part, CallPart) else "msg"
        return f"{kind}_{self._id}_{part.number}"

    def _item_event(self, kind: str, part: Part, item: Chunk) -> Chunk:
        return self._event(kind, output_index=part.number, item=item)

    def _text_event(self, kind: str, of: Part, /, **fields: Any) -> Chunk:
        return self._part_event(kind, of, content_index=0, **fields)

    def _part_event(self, kind: str, of: Part, /, **fields: Any) -> Chunk:
        return self._event(kind, item_id=self._item_id(of), output_index=of.number, **fields)

    def _event(self, kind: str, **fields: Any) -> Chunk:
        event = {"type": kind, "sequence_number": self._told, **fields}
        self._told += 1
        if kind.endswith(".delta"):
            self.pieces.append((fields["output_index"], len(fields["delta"])))
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
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "safety_identifier": body.safety_identifier,
        "service_tier": "flex" if body.service_tier == "flex" else "default",
        "store": body.store,
        "temperature": body.temperature,
        "text": {"format": msgspec.to_builtins(body.text.format)},
        "tool_choice": msgspec.to_builtins(body.tool_choice),
        "tools": [tool.told() for tool in body.tools],
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
