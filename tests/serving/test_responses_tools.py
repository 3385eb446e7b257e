"""Tools in the Responses API, as the unmodified `openai` client sees them."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from jsonschema import Draft202012Validator
from openai import OpenAI
from pydantic import BaseModel

from backends.backend import CallPiece, Unavailable
from backends.prompt import ChatMessage, ToolCall, ToolChoice

ASK = "What is the weather in Paris and Rome?"


class Weather(BaseModel):
    """Of a city."""

    city: str


TOOLS: Any = [
    {"type": "function", "name": "weather", "description": "Of a city", "strict": True,
     "parameters": Weather.model_json_schema() | {"additionalProperties": False}},
]  # fmt: skip
PIECES = [
    (CallPiece(index=0, id="call_a", name="weather"),),
    (CallPiece(index=0, arguments='{"ci'),),
    (CallPiece(index=0, arguments='ty": "Paris"}'), CallPiece(index=1, id="call_b", name="weather")),
    (CallPiece(index=1, arguments='{"city": "Rome"}'),),
]
CALLS = [("call_a", "weather", '{"city": "Paris"}'), ("call_b", "weather", '{"city": "Rome"}')]
CALLED = ChatMessage("assistant", "", tool_calls=tuple(ToolCall(*call) for call in CALLS))
RESULTS: Any = [{"type": "function_call_output", "call_id": id, "output": "Sun"} for id, _, _ in CALLS]
TOLD = tuple(ChatMessage("tool", "Sun", tool_call_id=id) for id, _, _ in CALLS)
MESSAGE_EVENTS = [
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
CALL_EVENTS = [
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
]
SHORT_CALL_EVENTS = [CALL_EVENTS[0], *CALL_EVENTS[2:]]


@pytest.fixture
def client(front: Any) -> Iterator[OpenAI]:
    calling(front)
    with OpenAI(base_url=f"{front.url}/v1", api_key="any", max_retries=0, timeout=60) as made:
        yield made


def calling(front: Any, *texts: str) -> None:
    script = front.dispatcher.script
    script.texts, script.calls, script.finish = texts, PIECES, "tool_calls"


def saying(front: Any) -> None:
    script = front.dispatcher.script
    script.texts, script.calls, script.finish = ("Sun", "ny."), (), "stop"


def asked(front: Any) -> tuple[ChatMessage, ...]:
    said: tuple[ChatMessage, ...] = front.dispatcher.requests[-1].prompt.messages
    return said


def calls_of(response: Any) -> list[tuple[str, str, str]]:
    return [
        (item.call_id, item.name, item.arguments) for item in response.output if item.type == "function_call"
    ]


def test_in_one_piece(client: OpenAI, front: Any) -> None:
    response = client.responses.create(model="auto", input=ASK, tools=TOOLS, parallel_tool_calls=True)
    assert calls_of(response) == CALLS and response.status == "completed"
    assert [item.type for item in response.output] == ["function_call", "function_call"]
    assert len({item.id for item in response.output}) == 2
    assert [tool.to_dict() for tool in response.tools] == TOOLS
    (tool,) = front.dispatcher.requests[-1].prompt.tools
    assert (tool.name, tool.strict, tool.parameters) == ("weather", True, TOOLS[0]["parameters"])


NAMED: Any = {"type": "function", "name": "weather"}
ALLOWED: Any = {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        (NAMED, ToolChoice("required", "weather", False)),
        (ALLOWED, ToolChoice("required", None, False, ("weather",))),
    ],
)
def test_what_was_chosen_is_told(client: OpenAI, front: Any, choice: Any, meant: ToolChoice) -> None:
    response: Any = client.responses.create(
        model="auto", input=ASK, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False
    )
    assert response.tool_choice.to_dict() == choice and response.parallel_tool_calls is False
    assert front.dispatcher.requests[-1].prompt.tool_choice == meant


def test_the_events_of_a_stream(client: OpenAI, front: Any) -> None:
    calling(front, "I ", "look.")
    events: list[Any] = list(client.responses.create(model="auto", input=ASK, tools=TOOLS, stream=True))
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        *MESSAGE_EVENTS,
        *CALL_EVENTS,
        *SHORT_CALL_EVENTS,
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    output = events[-1].response.output
    assert [item.type for item in output] == ["message", "function_call", "function_call"]
    for event in events[2:-1]:
        assert output[event.output_index].id == (event.item.id if hasattr(event, "item") else event.item_id)
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == output
    added = [event.item for event in events if event.type == "response.output_item.added"]
    assert [item.status for item in added] == ["in_progress"] * 3
    assert [item.arguments for item in added[1:]] == ["", ""]


@pytest.mark.parametrize("texts", [("Hel", "lo"), ()])
def test_its_stream_helper_says_the_same(client: OpenAI, front: Any, texts: tuple[str, ...]) -> None:
    calling(front, *texts)
    tool = openai.pydantic_function_tool(Weather, name="weather")
    parsing: Any = [{"type": "function", **tool["function"]}]
    whole = client.responses.create(model="auto", input=ASK, tools=parsing)
    with client.responses.stream(model="auto", input=ASK, tools=parsing) as stream:
        deltas = [event for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    assert calls_of(final) == calls_of(whole) == CALLS
    assert final.output_text == whole.output_text == "".join(texts)
    assert deltas[-1].snapshot == '{"city": "Rome"}'
    parsed = client.responses.parse(
        model="auto", input=ASK, tools=[openai.pydantic_function_tool(Weather, name="weather")]
    )
    arguments = [item.parsed_arguments for item in parsed.output if item.type == "function_call"]
    assert arguments == [Weather(city="Paris"), Weather(city="Rome")]


@pytest.mark.parametrize("stream", [True, False])
def test_a_loop_by_the_id_of_the_response_before(client: OpenAI, front: Any, stream: bool) -> None:
    if stream:
        *_, last = client.responses.create(model="auto", input=ASK, tools=TOOLS, stream=True)
        made: Any = last.response  # type: ignore[union-attr]
    else:
        made = client.responses.create(model="auto", input=ASK, tools=TOOLS)
    assert client.responses.retrieve(made.id).to_dict() == made.to_dict()
    saying(front)
    then = client.responses.create(model="auto", input=RESULTS, tools=TOOLS, previous_response_id=made.id)
    assert then.output_text == "Sunny."
    assert asked(front) == (ChatMessage("user", ASK), CALLED, *TOLD)
    assert front.dispatcher.requests[-1].answered_by == "7b"  # whichever process answers: the store tells
    client.responses.create(model="auto", input="Thanks.", previous_response_id=then.id)
    assert front.dispatcher.requests[-1].answered_by is None
    assert asked(front)[1:4] == (CALLED, *TOLD)
    listed: Any = client.responses.input_items.list(then.id, order="asc")
    assert [(item.type, item.call_id, item.output) for item in listed] == [
        ("function_call_output", "call_a", "Sun"), ("function_call_output", "call_b", "Sun"),
    ]  # fmt: skip


def test_a_loop_in_a_conversation(client: OpenAI, front: Any) -> None:
    calling(front, "I look.")
    conversation = client.conversations.create().id
    client.responses.create(model="auto", input=ASK, tools=TOOLS, conversation=conversation)
    saying(front)
    client.responses.create(model="auto", input=RESULTS, tools=TOOLS, conversation=conversation)
    called = ChatMessage("assistant", "I look.", tool_calls=CALLED.tool_calls)
    assert asked(front) == (ChatMessage("user", ASK), called, *TOLD)
    assert front.dispatcher.requests[-1].answered_by == "7b"
    items: list[Any] = list(client.conversations.items.list(conversation, order="asc", limit=2))
    assert [item.type for item in items] == [
        "message", "message", "function_call", "function_call",
        "function_call_output", "function_call_output", "message",
    ]  # fmt: skip
    assert [(item.call_id, item.name, item.arguments) for item in items[2:4]] == CALLS
    for item in items:
        found = client.conversations.items.retrieve(item.id, conversation_id=conversation)
        assert found.to_dict() == item.to_dict()


def test_items_of_a_loop_are_deleted_and_a_call_takes_its_output_along(client: OpenAI, front: Any) -> None:
    calling(front, "I look.")
    made = client.conversations.create().id
    client.responses.create(model="auto", input=ASK, tools=TOOLS, conversation=made)
    saying(front)
    client.responses.create(model="auto", input=RESULTS, tools=TOOLS, conversation=made)
    items = client.conversations.items

    def listed() -> list[Any]:
        return list(items.list(made, order="asc"))

    ask, words, paris, rome, sun_a, sun_b, last = listed()
    items.delete(paris.id, conversation_id=made)
    assert listed() == [ask, words, rome, sun_b, last]
    items.delete(words.id, conversation_id=made)
    items.delete(sun_b.id, conversation_id=made)
    assert listed() == [ask, rome, last]
    items.delete(rome.id, conversation_id=made)
    assert listed() == [ask, last]
    for gone in (words, paris, rome, sun_a):
        with pytest.raises(openai.NotFoundError):
            items.delete(gone.id, conversation_id=made)
    client.responses.create(model="auto", input="So?", conversation=made)
    assert asked(front) == (
        ChatMessage("user", ASK),
        ChatMessage("assistant", "Sunny."),
        ChatMessage("user", "So?"),
    )


@pytest.mark.parametrize("texts", [(), ("I ", "look.")])
@pytest.mark.parametrize("breakage", [None, Unavailable("The engine died.", "server_error")])
def test_a_stored_loop_is_streamed_again_as_it_was(
    client: OpenAI, front: Any, texts: tuple[str, ...], breakage: Exception | None
) -> None:
    calling(front, *texts)
    front.dispatcher.script.breakage = breakage
    live: list[Any] = list(client.responses.create(model="auto", input=ASK, tools=TOOLS, stream=True))
    again: list[Any] = list(client.responses.retrieve(live[0].response.id, stream=True))
    assert [event.to_dict() for event in again] == [event.to_dict() for event in live]


def test_items_of_a_conversation_that_were_said_elsewhere(client: OpenAI, front: Any) -> None:
    call: Any = {"type": "function_call", "call_id": "call_9", "name": "weather", "arguments": "{}"}
    result: Any = {"type": "function_call_output", "call_id": "call_9", "output": "Rain"}
    made = client.conversations.create(items=[{"role": "user", "content": ASK}, call]).id
    added: Any = client.conversations.items.create(
        made, items=[result, {"role": "user", "content": "Go on."}]
    )
    assert [item.type for item in added.data] == ["function_call_output", "message"]
    stray: Any = [{"role": "user", "content": ASK}, {**result, "call_id": "x"}]
    for attempt in (
        lambda: client.conversations.create(items=stray),
        lambda: client.conversations.items.create(made, items=stray),
    ):
        with pytest.raises(openai.BadRequestError, match="there is no call") as error:
            attempt()
        assert error.value.param == "items[1].call_id"
    client.responses.create(model="auto", input="So?", conversation=made)
    assert [message.role for message in asked(front)] == ["user", "assistant", "tool", "user", "user"]


def test_a_loop_that_the_client_keeps(client: OpenAI, front: Any) -> None:
    calling(front, "I look.")
    history: list[Any] = [{"role": "user", "content": ASK}]
    made = client.responses.create(model="auto", input=history, tools=TOOLS, store=False)
    history += [*made.output, *RESULTS]
    saying(front)
    client.responses.create(model="auto", input=history, tools=TOOLS, store=False)
    called = ChatMessage("assistant", "I look.", tool_calls=CALLED.tool_calls)
    assert asked(front) == (ChatMessage("user", ASK), called, *TOLD)


def test_an_answer_cut_at_its_length_ends_in_an_incomplete_call(client: OpenAI, front: Any) -> None:
    front.dispatcher.script.calls, front.dispatcher.script.finish = PIECES[:3], "length"
    response = client.responses.create(model="auto", input=ASK, tools=TOOLS)
    *_, last = client.responses.create(model="auto", input=ASK, tools=TOOLS, stream=True)
    for each in (response, last.response):  # type: ignore[union-attr]
        assert each.status == "incomplete"
        assert [item.status for item in each.output] == ["completed", "incomplete"]  # type: ignore[union-attr]


def test_calls_of_a_response_that_broke_off_are_shown_and_forgotten(client: OpenAI, front: Any) -> None:
    front.dispatcher.script.breakage = Unavailable("The engine died.")
    *_, failed = client.responses.create(model="auto", input=ASK, tools=TOOLS, stream=True)
    made: Any = failed.response  # type: ignore[union-attr]
    kept = client.responses.retrieve(made.id)
    assert kept.status == "failed" and calls_of(kept) == CALLS
    saying(front)
    front.dispatcher.script.breakage = None
    client.responses.create(model="auto", input="Again.", previous_response_id=made.id)
    assert asked(front)[1] == ChatMessage("assistant", "")


def test_form_and_tools_at_once(client: OpenAI, front: Any) -> None:
    client.responses.parse(model="auto", input=ASK, tools=TOOLS, text_format=Weather)
    request = front.dispatcher.requests[-1]
    assert request.grammar is not None and request.grammar_field == "text.format"
    assert request.prompt.tools[0].name == "weather"


def test_tokens_are_counted_with_the_tools(client: OpenAI, front: Any) -> None:
    client.responses.input_tokens.count(model="7b", input=ASK, tools=TOOLS)
    assert front.dispatcher.requests[-1].prompt.tools[0].name == "weather"


@pytest.fixture(scope="module")
def validate() -> Callable[[str, object], None]:
    """Raises ValidationError where a value is not of the schema of this name."""
    folder = os.environ.get("HEADRACE_DATA")
    if not folder:
        pytest.skip("HEADRACE_DATA names no folder with openai-openapi-trim.json")
    components = json.loads((Path(folder) / "openai-openapi-trim.json").read_text())["components"]

    def check(kind: str, value: object) -> None:
        schema = {"$ref": f"#/components/schemas/{kind}", "components": components}
        Draft202012Validator(schema).validate(value)

    return check


@pytest.mark.parametrize("finish", ["tool_calls", "length", None])
@pytest.mark.parametrize("texts", [("Hel", "lo"), ()])
def test_objects_and_events_are_what_openai_specifies(
    client: OpenAI, front: Any, validate: Callable[..., None], finish: Any, texts: tuple[str, ...]
) -> None:
    calling(front, *texts)
    front.dispatcher.script.finish = finish
    ask: Any = {"model": "auto", "input": ASK, "tools": TOOLS, "tool_choice": "required"}
    events = [event.to_dict() for event in client.responses.create(**ask, stream=True)]
    for event in events:
        validate("ResponseStreamEvent", event)
    if finish is None:
        return
    for item in client.responses.create(**ask).output:
        validate("OutputItem", item.to_dict())
    made = client.responses.create(**ask, conversation=client.conversations.create().id)
    validate("Response", made.to_dict())
    then = client.responses.create(model="auto", input=RESULTS, previous_response_id=made.id)
    listed = [*client.responses.input_items.list(then.id)]
    assert made.conversation is not None
    said = [*client.conversations.items.list(made.conversation.id)]
    for item in (*listed, *said):
        if item.type != "message":
            validate("OutputItem", item.to_dict())
