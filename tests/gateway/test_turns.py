"""Turns and messages say the same."""

from backends.prompt import ChatMessage, Prompt, Tool, ToolCall
from gateway.turns import said_in, to_message, to_turn
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
