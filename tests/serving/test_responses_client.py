"""The unmodified `openai` client's Responses API, over real sockets and real stores."""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from backends.backend import DeadlineExceeded, Overloaded, Rejected, Unavailable

EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def connect(front: Any, key: str = "hr_admin") -> OpenAI:
    return OpenAI(base_url=f"{front.url}/v1", api_key=key, max_retries=0, timeout=60)


MINE: Any = {"role": "user", "content": "Mine."}


@pytest.fixture
def client(front: Any) -> Iterator[OpenAI]:
    with connect(front) as made:
        yield made


def asked(front: Any, number: int = -1) -> list[tuple[str, str]]:
    """What the model was asked, as (role, text)."""
    return [(m.role, m.content) for m in front.dispatcher.requests[number].prompt.messages]


def test_a_response(client: OpenAI, front: Any) -> None:
    raw = client.responses.with_raw_response.create(
        model="auto", input="Hello?", instructions="Be brief.", max_output_tokens=9, temperature=0.5, top_p=0.9,
        metadata={"a": "b"}, user="ann", safety_identifier="s", prompt_cache_key="k",
    )  # fmt: skip
    response = raw.parse()
    assert response.output_text == "Hello"
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    assert response.model == raw.headers["x-headrace-tier"] == "7b"
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (
        12,
        3,
        15,
    )
    assert response.usage.input_tokens_details.cached_tokens == 8
    assert (response.metadata, response.instructions, response.user) == ({"a": "b"}, "Be brief.", "ann")
    assert (response.temperature, response.top_p, response.max_output_tokens) == (0.5, 0.9, 9)
    assert response.completed_at is not None and response.completed_at >= response.created_at
    request = front.dispatcher.requests[0]
    assert request.endpoint == "responses" and request.session is None
    assert (request.max_tokens, request.temperature, request.top_p) == (9, 0.5, 0.9)
    assert asked(front) == [("system", "Be brief."), ("user", "Hello?")]


def test_an_answer_that_was_too_long_is_incomplete(client: OpenAI, front: Any) -> None:
    front.dispatcher.script.finish = "length"
    response = client.responses.create(model="auto", input="Hello?")
    assert response.status == "incomplete" and response.completed_at is None
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    events = list(client.responses.create(model="auto", input="Hello?", stream=True))
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output[0].status == "incomplete"  # type: ignore[union-attr]


def test_the_events_of_a_stream(client: OpenAI) -> None:
    events: list[Any] = list(client.responses.create(model="auto", input="Hello?", stream=True))
    assert [event.type for event in events] == EVENTS
    assert [event.sequence_number for event in events] == list(range(len(EVENTS)))
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == ["Hel", "lo"]
    assert events[6].text == events[7].part.text == events[8].item.content[0].text == "Hello"
    assert events[0].response.status == "in_progress" and events[0].response.output == []
    last = events[-1].response
    assert last.id == events[0].response.id and last.output_text == "Hello"
    assert len({event.item_id for event in events if hasattr(event, "item_id")} | {last.output[0].id}) == 1


def test_the_bytes_of_a_stream_end_with_its_last_event(front: Any) -> None:
    body = json.dumps({"model": "auto", "input": "Hello?", "stream": True}).encode()
    request = urllib.request.Request(f"{front.url}/v1/responses", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        blocks = [block.split("\n") for block in answer.read().decode().strip().split("\n\n")]
    for name, data in blocks:
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert blocks[-1][0] == "event: response.completed"


async def test_the_stream_helper_of_the_asynchronous_client(front: Any) -> None:
    async with AsyncOpenAI(base_url=f"{front.url}/v1", api_key="any", max_retries=0) as client:
        async with client.responses.stream(model="auto", input="Hello?") as stream:
            texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
    assert texts == ["Hel", "lo"]
    assert final.output_text == "Hello"


@pytest.mark.parametrize("stream", [True, False])
def test_a_response_is_kept_until_it_is_deleted(client: OpenAI, stream: bool) -> None:
    if stream:
        last: Any = list(client.responses.create(model="auto", input="Hello?", stream=True))[-1]
        made = last.response
    else:
        made = client.responses.create(model="auto", input="Hello?")
    assert client.responses.retrieve(made.id).to_dict() == made.to_dict()
    client.responses.delete(made.id)
    for attempt in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError) as error:
            attempt(made.id)
        assert error.value.code == "response_not_found"


def test_a_response_that_is_not_to_be_stored_is_not(client: OpenAI) -> None:
    made = client.responses.create(model="auto", input="Hello?", store=False)
    assert made.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError) as error:
        client.responses.create(model="auto", input="And?", previous_response_id=made.id)
    assert (error.value.code, error.value.param) == ("previous_response_not_found", "previous_response_id")


def test_responses_go_on_from_one_another_also_apart(client: OpenAI, front: Any) -> None:
    first = client.responses.create(model="auto", input="One?", instructions="Be brief.")
    second = client.responses.create(model="auto", input="Two?", previous_response_id=first.id)
    assert second.previous_response_id == first.id and second.instructions is None
    assert asked(front) == [("user", "One?"), ("assistant", "Hello"), ("user", "Two?")]
    client.responses.create(
        model="auto", input="Other?", previous_response_id=first.id, instructions="Be long."
    )
    assert asked(front) == [
        ("system", "Be long."), ("user", "One?"), ("assistant", "Hello"), ("user", "Other?"),
    ]  # fmt: skip
    client.responses.delete(first.id)
    client.responses.create(model="auto", input="Three?", previous_response_id=second.id)
    assert [text for _, text in asked(front)] == ["One?", "Hello", "Two?", "Hello", "Three?"]


def test_a_streamed_response_can_be_gone_on_from_at_once(client: OpenAI, front: Any) -> None:
    for event in client.responses.create(model="auto", input="One?", stream=True):
        if event.type == "response.completed":
            client.responses.create(model="auto", input="Two?", previous_response_id=event.response.id)
    assert [text for _, text in asked(front)] == ["One?", "Hello", "Two?"]


def test_an_answer_can_be_sent_back_as_it_came(client: OpenAI, front: Any) -> None:
    made = client.responses.create(model="auto", input="One?")
    history: Any = [{"role": "user", "content": "One?"}, *made.output, {"role": "user", "content": "Two?"}]
    client.responses.create(model="auto", input=history)
    assert [text for _, text in asked(front)] == ["One?", "Hello", "Two?"]


def test_input_items(client: OpenAI) -> None:
    given: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "One?"}]},
        {"role": "assistant", "content": "Yes.", "id": "msg_mine"},
        {"role": "user", "content": "Two?"},
    ]
    made = client.responses.create(model="auto", input=given)
    listed: Any = client.responses.input_items.list(made.id, order="asc", limit=3)
    assert [(item.role, item.content[0].text) for item in listed.data] == [
        ("developer", "Be brief."), ("user", "One?"), ("assistant", "Yes."),
    ]  # fmt: skip
    assert [item.content[0].type for item in listed.data] == ["input_text", "input_text", "output_text"]
    assert listed.data[2].id == "msg_mine" and listed.has_more
    assert len({item.id for item in listed}) == 4  # the client turns the pages
    newest: Any = client.responses.input_items.list(made.id, limit=1)
    assert newest.data[0].content[0].text == "Two?"
    for wrong in (
        {"limit": 0},
        {"limit": 101},
        {"after": "msg_other"},
        {"include": ["reasoning.encrypted_content"]},
    ):
        with pytest.raises(openai.BadRequestError):
            client.responses.input_items.list(made.id, **wrong)


def test_a_finished_response_cannot_be_cancelled(client: OpenAI) -> None:
    made = client.responses.create(model="auto", input="Hello?")
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_unknown")


def test_the_tokens_of_an_input(client: OpenAI, front: Any) -> None:
    made = client.responses.create(model="auto", input="One")
    counted = client.responses.input_tokens.count(model="7b", input="Two", previous_response_id=made.id)
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", 12)
    said = [message.content for message in front.dispatcher.requests[1].prompt.messages]
    assert said == ["One", "Hello", "Two"]


def test_a_foreign_id_is_answered_like_an_unknown_one(client: OpenAI, front: Any) -> None:
    made = client.responses.create(model="auto", input="My secret.")
    conversation = client.conversations.create(items=[{"role": "user", "content": "My secret."}])
    with connect(front, "hr_tenant") as other:
        attempts: list[tuple[str, Callable[[str], Any]]] = [
            (made.id, other.responses.retrieve),
            (made.id, other.responses.delete),
            (made.id, other.responses.cancel),
            (made.id, other.responses.input_items.list),
            (made.id, lambda id: other.responses.create(model="auto", input="?", previous_response_id=id)),
            (conversation.id, other.conversations.retrieve),
            (conversation.id, other.conversations.delete),
            (conversation.id, other.conversations.items.list),
            (conversation.id, lambda id: other.conversations.update(id, metadata={})),
            (conversation.id, lambda id: other.conversations.items.create(id, items=[MINE])),
            (conversation.id, lambda id: other.conversations.items.retrieve("msg_1", conversation_id=id)),
            (conversation.id, lambda id: other.conversations.items.delete("msg_1", conversation_id=id)),
            (conversation.id, lambda id: other.responses.create(model="auto", input="?", conversation=id)),
        ]
        for foreign, attempt in attempts:
            unknown = foreign[:-8] + "01234567"
            told = []
            for given in (foreign, unknown):
                with pytest.raises(openai.NotFoundError) as error:
                    attempt(given)
                told.append(error.value.response.text.replace(given, "ID"))
            assert told[0] == told[1] and "secret" not in told[0]
    assert client.responses.retrieve(made.id).id == made.id
    assert client.conversations.retrieve(conversation.id).id == conversation.id
    assert len(front.dispatcher.requests) == 1


@pytest.mark.parametrize(
    ("refusal", "raised", "code"),
    [
        (Rejected("Too long."), openai.BadRequestError, "context_length_exceeded"),
        (Overloaded("Full."), openai.InternalServerError, "server_is_overloaded"),
        (RuntimeError("secret"), openai.InternalServerError, "internal_error"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_errors_before_the_first_byte(
    client: OpenAI,
    front: Any,
    refusal: Exception,
    raised: type[openai.APIStatusError],
    code: str,
    stream: bool,
) -> None:
    front.dispatcher.script.refusal = refusal
    with pytest.raises(raised) as error:
        client.responses.create(model="auto", input="Hello?", stream=stream)
    assert error.value.code == code
    assert "secret" not in error.value.response.text


def test_an_error_in_mid_stream(client: OpenAI, front: Any) -> None:
    front.dispatcher.script.breakage = Unavailable("The engine died.")
    events: list[Any] = list(client.responses.create(model="auto", input="Hello?", stream=True))
    error, failed = events[-2:]
    assert (error.type, error.code, error.message) == ("error", "engine_died", "The engine died.")
    assert (failed.type, failed.response.status) == ("response.failed", "failed")
    assert failed.response.error.code == "server_error"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kept = client.responses.retrieve(failed.response.id)
    assert (kept.status, kept.output_text) == ("failed", "Hello")
    front.eventually(lambda: front.dispatcher.running == 0)


def test_an_error_after_a_comment_only(serve: Callable[..., Any]) -> None:
    with serve(keepalive_after=0.05) as front, connect(front) as client:
        front.dispatcher.script.wait = 0.3
        front.dispatcher.script.refusal = DeadlineExceeded("Late.")
        events: list[Any] = list(client.responses.create(model="auto", input="Hello?", stream=True))
    assert [(event.type, event.sequence_number) for event in events] == [("error", 0)]
    assert events[0].code == "deadline_exceeded"


def test_a_client_that_leaves_finds_what_was_said_so_far(client: OpenAI, front: Any) -> None:
    front.dispatcher.script.texts = ["Hel", *["lo"] * 200]
    front.dispatcher.script.pause = 0.05
    conversation = client.conversations.create()
    with client.responses.create(
        model="auto", input="Hello?", conversation=conversation.id, stream=True
    ) as stream:
        created: Any = next(iter(stream))
        while next(iter(stream)).type != "response.output_text.delta":
            pass
    response = eventually(lambda: client.responses.retrieve(created.response.id))
    assert response.status == "cancelled" and response.output_text.startswith("Hel")
    assert list(client.conversations.items.list(conversation.id)) == []  # it grows by complete answers


def eventually(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while True:
        try:
            return what()
        except openai.NotFoundError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_store_that_is_down(client: OpenAI, front: Any) -> None:
    front.stores.spoil()
    made = client.responses.create(model="auto", input="Hello?")
    assert made.output_text == "Hello" and made.to_dict()["store"] is False
    for attempt in (
        lambda: client.responses.retrieve(made.id),
        lambda: client.responses.create(model="auto", input="?", previous_response_id=made.id),
        lambda: client.conversations.create(),
        lambda: client.conversations.retrieve("conv_" + 32 * "0"),
    ):
        with pytest.raises(openai.InternalServerError) as error:
            attempt()
        assert (error.value.status_code, error.value.code) == (503, "session_store_unavailable")
    assert b'headrace_state_backend_up{kind="sessions"} 0' in front.stores.metrics.render()


def test_a_session_of_chats_means_nothing_here(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model="auto", input="?", extra_headers={"x-session-id": "new"})
    assert error.value.param == "x-session-id"


@pytest.mark.parametrize("breakage", [None, Unavailable("The engine died.", "server_error")])
def test_a_stored_response_is_streamed_again_as_it_was(
    client: OpenAI, front: Any, breakage: Exception | None
) -> None:
    front.dispatcher.script.texts = ["Hel", "", "l", "o \N{WAVING HAND SIGN}"]
    front.dispatcher.script.breakage = breakage
    live: list[Any] = list(client.responses.create(model="auto", input="Hello?", stream=True))
    response_id = live[0].response.id
    for after in (None, 0, 4, len(live) - 2, len(live) - 1, len(live) + 5):
        given: Any = {} if after is None else {"starting_after": after}
        again: list[Any] = list(client.responses.retrieve(response_id, stream=True, **given))
        rest = live[0 if after is None else after + 1 :]
        assert [event.to_dict() for event in again] == [event.to_dict() for event in rest]


def test_a_response_that_was_not_streamed_is_told_in_one_piece(client: OpenAI) -> None:
    made = client.responses.create(model="auto", input="Hello?")
    events: list[Any] = list(client.responses.retrieve(made.id, stream=True))
    assert [event.type for event in events] == [*EVENTS[:4], *EVENTS[5:]]
    assert events[4].delta == "Hello"
    assert events[-1].response.to_dict() == made.to_dict()
    assert client.responses.retrieve(made.id, stream=False).id == made.id


def test_a_response_whose_client_left_is_told_to_its_end(client: OpenAI, front: Any) -> None:
    front.dispatcher.script.texts = ["Hel", *["lo"] * 200]
    front.dispatcher.script.pause = 0.05
    with client.responses.create(model="auto", input="Hello?", stream=True) as stream:
        seen: list[Any] = [next(iter(stream)) for _ in range(6)]
    response_id = seen[0].response.id
    eventually(lambda: client.responses.retrieve(response_id))
    rest: list[Any] = list(client.responses.retrieve(response_id, stream=True, starting_after=5))
    assert [event.sequence_number for event in rest] == list(range(6, 6 + len(rest)))
    assert rest[-1].response.status == "cancelled"
    told = "".join(e.delta for e in (*seen, *rest) if e.type == "response.output_text.delta")
    assert told == rest[-1].response.output_text


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "starting_after": -1}, "starting_after"),
        ({"stream": True, "starting_after": "\u0663"}, "starting_after"),
        ({"starting_after": 1}, "starting_after"),
        ({"include_obfuscation": True}, "include_obfuscation"),
        ({"include": ["x"]}, "include[]"),
    ],
)
def test_what_cannot_be_asked_of_a_stored_response_is_named(client: OpenAI, query: Any, param: str) -> None:
    made = client.responses.create(model="auto", input="Hello?")
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.retrieve(made.id, extra_query=query)
    assert error.value.param == param


def test_compacting_is_refused_by_name(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="compact: nothing is compacted"):
        client.responses.compact(model="auto", input="Hello?")
