"""How models write their calls. A new format is an entry in `FORMATS`.

Which one a model writes is read off its chat template: a conversation with a tool, a call and a result is rendered, and
what has become of them tells the format, or that the template drops them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.prompt import ChatMessage, Tool, ToolCall

Render = Callable[[Sequence[ChatMessage], Sequence[Tool]], str]

ASKED = ChatMessage("user", "ask_of_the_probe")
TOOL = Tool("tool_of_the_probe", "What it does.", {"type": "object", "properties": {}})
# Ids of nine characters suit every template.
CALL = ToolCall("probe0001", "call_of_the_probe", '{"key": "value"}')
CALLED = ChatMessage("assistant", "", tool_calls=(CALL,))
RESULT = ChatMessage("tool", "result_of_the_probe", tool_call_id=CALL.id, name=CALL.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """Each call is an object with a name and arguments, between two marks, or without any: then it is all of an answer.

    `bare`: small models of the family leave the marks out, or fence the object as code.
    """

    name: str
    begin: str = ""
    end: str = ""
    key: str = "arguments"
    before: str = ""  # between the mark and the object
    after: str = ""  # between the object and the mark
    between: str = ""  # between two calls
    bare: bool = False


FORMATS = (
    # Qwen 2.5 and 3, Hermes 2 Pro and 3, and many after them.
    ToolFormat(
        name="hermes",
        begin="<tool_call>",
        end="</tool_call>",
        before="\n",
        after="\n",
        between="\n",
        bare=True,
    ),
    ToolFormat(name="llama3_json", key="parameters"),  # Llama 3.1 and later
)


@dataclass(frozen=True, slots=True)
class ToolSupport:
    """`told`: the template tells the model of tools, calls and results. `format`: None where its calls are unknown."""

    told: bool
    format: ToolFormat | None


def support(render: Render) -> ToolSupport:
    """What a template does with tools. `render` may raise ValueError."""
    try:
        offered, rendered = render([ASKED], [TOOL]), render([ASKED, CALLED, RESULT], [TOOL])
    except ValueError:
        return ToolSupport(False, None)
    told = TOOL.name in offered and CALL.name in rendered and RESULT.content in rendered
    return ToolSupport(told, _format(rendered, offered) if told else None)


def _format(rendered: str, offered: str) -> ToolFormat | None:
    """By the marks around the probe's call, but for those that stand in the instructions already; else by the call."""
    for form in FORMATS:
        marks = (form.begin, form.end) if form.begin else (f'{{"name": "{CALL.name}", "{form.key}": ',)
        if all(rendered.count(mark) > offered.count(mark) for mark in marks):
            return form
    return None
