"""Turns and messages say the same."""

import pytest

from backends.prompt import ChatMessage, Prompt, Tool, ToolCall
from gateway.errors import ApiError
from gateway.turns import check_results, said_in, to_message, to_turn
from sessions import Call, Turn

MESSAGES = (
    ChatMessage("user", "Hi", name="ann"),
    ChatMessage("assistant", "", tool_calls=(ToolCall("c1", "add", '{"a": 1}'),)),
    ChatMessage("tool", "2", tool_call_id="c1"),
)


def test_there_and_back() -> None:
    turns = [to_turn(message) for message in MESSAGES]
    assert turns[1:] == [
        Turn("assistant", "", calls=(Call("c1", "add", '{"a": 1}'),)),
        Turn("tool", "2", answers="c1"),
    ]
    assert tuple(to_message(turn) for turn in turns) == MESSAGES


def test_the_same_request_in_another_conversation() -> None:
    prompt = Prompt(messages=MESSAGES[:1], tools=(Tool("add"),))
    assert said_in(prompt, [Turn("user", "Bye")]) == Prompt(
        messages=(ChatMessage("user", "Bye"),), tools=prompt.tools
    )


CALLED = Turn("assistant", "", calls=(Call("c1", "add", "{}"), Call("c2", "add", "{}")))
FIRST, SECOND, STRAY = (Turn("tool", "", answers=id) for id in ("c1", "c2", "c9"))


def test_results_of_calls() -> None:
    check_results((), (CALLED, SECOND, FIRST), ("a", "b"))
    check_results((CALLED,), (FIRST, SECOND), ("a", "b"))
    check_results((), (STRAY, CALLED, FIRST), ("a",))  # that one came before, and was checked then


@pytest.mark.parametrize(
    ("history", "incoming", "fields", "field"),
    [
        ((), (FIRST, CALLED), ("a",), "a"),
        ((CALLED,), (FIRST, STRAY), ("a", "b"), "b"),
        ((), (CALLED, FIRST, SECOND, STRAY), ("b",), "b"),
        ((), (CALLED, FIRST, STRAY, SECOND), ("a", "b"), "a"),
    ],
)
def test_a_result_without_its_call_is_named_in_the_clients_words(
    history: tuple[Turn, ...], incoming: tuple[Turn, ...], fields: tuple[str, ...], field: str
) -> None:
    with pytest.raises(ApiError, match="there is no call 'c[19]' before this result") as error:
        check_results(history, incoming, fields)
    assert (error.value.status, error.value.param) == (400, field)
