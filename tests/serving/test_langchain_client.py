"""The unmodified `langchain-openai` client against the front door: what its users do every day."""

import functools
import operator
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

from backends.backend import CallPiece
from gateway.errors import ApiError

TALK: Any = [SystemMessage("Be terse."), HumanMessage("Hi"), AIMessage("Hello"), HumanMessage("And now?")]


@pytest.fixture
def chat(front: Any) -> Iterator[ChatOpenAI]:
    yield _made(ChatOpenAI, front)


def _made(kind: Any, front: Any, **options: Any) -> Any:
    return kind(model="auto", base_url=f"{front.url}/v1", api_key="any", max_retries=0, **options)


def test_invoke(chat: ChatOpenAI, front: Any) -> None:
    answer = chat.invoke(TALK)
    assert answer.content == "Hello"
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.response_metadata["model_name"] == "7b"
    assert answer.usage_metadata is not None
    assert (answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"]) == (12, 3)
    assert answer.usage_metadata["input_token_details"] == {"cache_read": 8}
    said = [(message.role, message.content) for message in front.dispatcher.requests[0].prompt.messages]
    assert said == [("system", "Be terse."), ("user", "Hi"), ("assistant", "Hello"), ("user", "And now?")]


def test_an_answer_goes_back_into_the_conversation(chat: ChatOpenAI, front: Any) -> None:
    first = chat.invoke("Hi")
    chat.invoke([HumanMessage("Hi"), first, HumanMessage("Go on.")])
    roles = [message.role for message in front.dispatcher.requests[1].prompt.messages]
    assert roles == ["user", "assistant", "user"]


def test_stream(front: Any) -> None:
    chunks = list(_made(ChatOpenAI, front, stream_usage=True).stream("Hi"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert "".join(str(chunk.content) for chunk in chunks) == whole.content == "Hello"
    assert whole.response_metadata["finish_reason"] == "stop"
    assert whole.usage_metadata is not None and whole.usage_metadata["total_tokens"] == 15


async def test_astream_and_abatch(chat: ChatOpenAI) -> None:
    assert "".join([str(chunk.content) async for chunk in chat.astream("Hi")]) == "Hello"
    assert [answer.content for answer in await chat.abatch(["a", "b"])] == ["Hello"] * 2


def test_batch(chat: ChatOpenAI, front: Any) -> None:
    assert [answer.content for answer in chat.batch(["a", "b", "c"])] == ["Hello"] * 3
    assert len(front.dispatcher.requests) == 3


def weather(city: str) -> str:
    """Of a city."""
    return f"Sun in {city}"


@pytest.mark.parametrize("texts", [("I ", "look."), ()])
def test_tools(chat: ChatOpenAI, front: Any, texts: tuple[str, ...]) -> None:
    front.dispatcher.script.texts, front.dispatcher.script.finish = texts, "tool_calls"
    front.dispatcher.script.calls = [
        (CallPiece(index=0, id="call_a", name="weather"), CallPiece(index=0, arguments='{"city": ')),
        (CallPiece(index=0, arguments='"Paris"}'), CallPiece(index=1, id="call_b", name="weather")),
        (CallPiece(index=1, arguments='{"city": "Rome"}'),),
    ]
    bound = chat.bind_tools([weather], tool_choice="any", parallel_tool_calls=True)
    answer = bound.invoke("Weather in Paris and Rome?")
    assert [(call["id"], call["args"]) for call in answer.tool_calls] == [
        ("call_a", {"city": "Paris"}),
        ("call_b", {"city": "Rome"}),
    ]
    assert answer.content == "".join(texts)
    prompt = front.dispatcher.requests[-1].prompt
    assert (prompt.tools[0].name, prompt.tool_choice.mode) == ("weather", "required")
    streamed = functools.reduce(operator.add, bound.stream("Weather in Paris and Rome?"))
    assert streamed.tool_calls == answer.tool_calls and streamed.content == answer.content
    results = [ToolMessage(weather(**call["args"]), tool_call_id=call["id"]) for call in answer.tool_calls]
    chat.invoke([HumanMessage("Weather in Paris and Rome?"), answer, *results])
    _, called, first, second = front.dispatcher.requests[-1].prompt.messages
    assert [call.id for call in called.tool_calls] == [first.tool_call_id, second.tool_call_id]
    assert second.content == "Sun in Rome"


def test_tools_of_responses(front: Any) -> None:
    """The loop by the id of the response before, in one piece and streamed."""
    front.dispatcher.script.texts, front.dispatcher.script.finish = ("I look.",), "tool_calls"
    front.dispatcher.script.calls = [
        (CallPiece(index=0, id="call_a", name="weather"), CallPiece(index=0, arguments='{"city": "Paris"}')),
    ]
    chat = _made(ChatOpenAI, front, use_responses_api=True)
    bound = chat.bind_tools([weather], tool_choice="any")
    answer = bound.invoke("Weather in Paris?")
    assert [(call["id"], call["args"]) for call in answer.tool_calls] == [("call_a", {"city": "Paris"})]
    streamed = functools.reduce(operator.add, bound.stream("Weather in Paris?"))
    assert (streamed.tool_calls, streamed.text) == (answer.tool_calls, answer.text)
    result = ToolMessage("Sun", tool_call_id="call_a")
    chat.invoke([result], previous_response_id=answer.response_metadata["id"])
    going_on = front.dispatcher.requests[-1].prompt.messages
    chat.invoke([HumanMessage("Weather in Paris?"), answer, result])
    assert front.dispatcher.requests[-1].prompt.messages == going_on
    assert [message.role for message in going_on] == ["user", "assistant", "tool"]
    assert going_on[1].content == "I look." and going_on[1].tool_calls[0].arguments == '{"city": "Paris"}'


class Town(BaseModel):
    """A town."""

    city: str


@pytest.mark.parametrize("by_responses", [False, True])
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(front: Any, method: Any, by_responses: bool) -> None:
    told, script = '{"city": "Paris"}', front.dispatcher.script
    if method == "json_schema":
        script.texts = (told,)
    else:
        script.texts, script.finish = (), "tool_calls"
        script.calls = [(CallPiece(index=0, id="c", name="Town"), CallPiece(index=0, arguments=told))]
    chat = _made(ChatOpenAI, front, use_responses_api=by_responses)
    assert chat.with_structured_output(Town, method=method).invoke("Where?") == Town(city="Paris")
    request = front.dispatcher.requests[-1]
    if method == "json_schema":
        assert request.grammar is not None and "city" in request.grammar.source
    else:
        choice = request.prompt.tool_choice
        assert (choice.mode, choice.name, choice.parallel) == ("required", "Town", False)


def test_a_chain_with_options(front: Any) -> None:
    chat = _made(ChatOpenAI, front, temperature=0.2, top_p=0.9, seed=7, stop=["\n"], max_tokens=20, n=1)
    chain = ChatPromptTemplate([("system", "You {mood}."), ("user", "{ask}")]) | chat | StrOutputParser()
    assert chain.invoke({"mood": "smile", "ask": "Well?"}) == "Hello"
    [request] = front.dispatcher.requests
    assert [message.content for message in request.prompt.messages] == ["You smile.", "Well?"]
    assert (request.temperature, request.top_p, request.seed) == (0.2, 0.9, 7)
    assert (request.stop, request.max_tokens) == (("\n",), 20)


def test_logprobs(front: Any) -> None:
    answer = _made(ChatOpenAI, front, logprobs=True, top_logprobs=2).invoke("Hi")
    assert answer.response_metadata["logprobs"] == {"content": [], "refusal": None}
    assert front.dispatcher.requests[0].logprobs == 2


def test_responses(front: Any) -> None:
    chat = _made(ChatOpenAI, front, use_responses_api=True)
    answer = chat.invoke("Hi")
    assert answer.text == "Hello"
    assert answer.usage_metadata["input_tokens"] == 12
    follow = chat.invoke("And?", previous_response_id=answer.response_metadata["id"])
    assert follow.text == "Hello"
    assert "".join(chunk.text for chunk in chat.stream("Hi")) == "Hello"


def test_completions(front: Any) -> None:
    """This client sends several prompts in one call, and `best_of` only where it is told to."""
    llm = _made(OpenAI, front, n=2)
    generations = llm.generate(["One", "Two", "Three"]).generations
    assert [len(each) for each in generations] == [2, 2, 2]
    assert [request.prompt.text for request in front.dispatcher.requests] == ["One", "Two", "Three"]
    assert "".join(_made(OpenAI, front).stream("One")) == "Hello"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, openai.RateLimitError), (404, openai.NotFoundError), (503, openai.InternalServerError)],
)
def test_errors_are_those_of_the_openai_client(
    chat: ChatOpenAI, front: Any, status: int, kind: type[Exception]
) -> None:
    front.dispatcher.script.refusal = ApiError(status, "no", code="some_code")
    with pytest.raises(kind):
        chat.invoke("Hi")
    with pytest.raises(kind):
        list(chat.stream("Hi"))
