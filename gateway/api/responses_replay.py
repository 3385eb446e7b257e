"""The events of a stored response, as they were streamed: the same pieces, the same numbers.

So a client whose connection broke goes on behind the last event that it has read. A response that was not streamed is
told in one piece for each item.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.api.dialect import Chunk

AT_THE_END = frozenset({"completed_at", "usage"})  # what a response has only when it is over


def replay(response: Mapping[str, Any], pieces: Sequence[tuple[int, int]]) -> Iterator[Chunk]:
    """`pieces`: see `gateway.archive.StoredResponse`."""
    for number, event in enumerate(_events(response, pieces)):
        yield {**event, "sequence_number": number}


def _events(response: Mapping[str, Any], pieces: Sequence[tuple[int, int]]) -> Iterator[Chunk]:
    begun = {name: value for name, value in response.items() if name not in AT_THE_END}
    begun |= {"status": "in_progress", "output": [], "error": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    failed, items = response["status"] == "failed", response["output"]
    for index, item in enumerate(items):
        lengths = [length for of, length in pieces if of == index]
        yield from _item(index, item, lengths, ended=not failed or index < len(items) - 1)
    if failed:
        yield {"type": "error", **response["error"], "param": None}
    yield {"type": f"response.{_ending(response['status'])}", "response": response}


def _ending(status: str) -> str:
    """There is no event for one that was cancelled, as its client left; it is incomplete."""
    return "incomplete" if status == "cancelled" else status


def _item(index: int, item: Mapping[str, Any], lengths: Sequence[int], *, ended: bool) -> Iterator[Chunk]:
    begun: Chunk = {"content": []} if item["type"] == "message" else {"arguments": ""}
    events = _text if item["type"] == "message" else _call
    begun = {**item, "status": "in_progress", **begun}
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    for event in events(item, lengths, ended=ended):
        yield {**event, "item_id": item["id"], "output_index": index}
    if ended:
        yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _text(item: Mapping[str, Any], lengths: Sequence[int], *, ended: bool) -> Iterator[Chunk]:
    [part] = item["content"]
    place = {"content_index": 0}
    yield {"type": "response.content_part.added", "part": {**part, "text": ""}, **place}
    for piece in _cut(part["text"], lengths):
        yield {"type": "response.output_text.delta", "delta": piece, "logprobs": [], **place}
    if ended:
        yield {"type": "response.output_text.done", "text": part["text"], "logprobs": [], **place}
        yield {"type": "response.content_part.done", "part": part, **place}


def _call(item: Mapping[str, Any], lengths: Sequence[int], *, ended: bool) -> Iterator[Chunk]:
    for piece in _cut(item["arguments"], lengths):
        yield {"type": "response.function_call_arguments.delta", "delta": piece}
    if ended:
        told = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **told}


def _cut(text: str, lengths: Sequence[int]) -> Iterator[str]:
    """`text` in pieces of these lengths, the last one as long as it has to be."""
    start = 0
    for length in lengths:
        yield text[start : start + length]
        start += length
    if start < len(text):
        yield text[start:]
