"""A conversation as it is stored and as a model is asked it: the same, but for what only one of them has to know."""

from collections.abc import Iterable, Sequence

import msgspec

from backends.prompt import ChatMessage, Prompt, ToolCall
from gateway.errors import ApiError
from sessions import Call, Turn


def to_message(turn: Turn) -> ChatMessage:
    return ChatMessage(
        role=turn.role,
        content=turn.content,
        name=turn.name,
        tool_calls=tuple(ToolCall(call.id, call.name, call.arguments) for call in turn.calls),
        tool_call_id=turn.answers,
    )


def to_messages(turns: Iterable[Turn]) -> tuple[ChatMessage, ...]:
    return tuple(to_message(turn) for turn in turns)


def said_in(prompt: Prompt, turns: Iterable[Turn]) -> Prompt:
    """The same request in another conversation."""
    return msgspec.structs.replace(prompt, messages=to_messages(turns))


def to_turn(message: ChatMessage) -> Turn:
    return Turn(
        role=message.role,
        content=message.content,
        name=message.name,
        calls=to_calls(message.tool_calls),
        answers=message.tool_call_id,
    )


def to_calls(calls: Iterable[ToolCall]) -> tuple[Call, ...]:
    return tuple(Call(call.id, call.name, call.arguments) for call in calls)


def check_results(history: Sequence[Turn], incoming: Sequence[Turn], fields: Sequence[str]) -> None:
    """Templates would leave a result without its call to the model to guess at. Raises ApiError 400.

    `fields`: where the client has named the calls of the last results in `incoming`; those before were checked when
    they came.
    """
    called = {call.id for turn in history for call in turn.calls}
    unnamed = sum(turn.answers is not None for turn in incoming) - len(fields)
    for turn in incoming:
        called.update(call.id for call in turn.calls)
        if turn.answers is None:
            continue
        if unnamed <= 0 and turn.answers not in called:
            field, reason = fields[-unnamed], f"there is no call {turn.answers[:64]!r} before this result"
            raise ApiError(400, f"{field}: {reason}", param=field)
        unnamed -= 1
