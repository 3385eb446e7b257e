"""How long a prompt is, and whether it is about tools."""

from backends.prompt import ChatMessage, Prompt, Tool, ToolCall

CALL = ToolCall("call_1", "add", '{"a": 1}')


def test_a_text_is_as_long_as_it_is() -> None:
    assert list(Prompt(text="four").lengths()) == [4]


def test_calls_and_tools_count() -> None:
    asked, called = ChatMessage("user", "sum"), ChatMessage("assistant", "", tool_calls=(CALL,))
    tool = Tool("add", parameters={"type": "object"})
    assert list(Prompt(messages=(asked, called)).lengths()) == [3, 3 + 8]
    assert list(Prompt(messages=(asked,), tools=(tool,)).lengths()) == [
        3,
        len('{"name":"add","parameters":{"type":"object"}}'),
    ]


def test_a_prompt_speaks_of_tools_when_any_part_does() -> None:
    asked = ChatMessage("user", "sum")
    assert not Prompt(messages=(asked,)).speaks_of_tools
    assert Prompt(messages=(asked,), tools=(Tool("add"),)).speaks_of_tools
    assert Prompt(messages=(asked, ChatMessage("assistant", "", tool_calls=(CALL,)))).speaks_of_tools
    assert Prompt(messages=(ChatMessage("tool", "2", tool_call_id="call_1"),)).speaks_of_tools
