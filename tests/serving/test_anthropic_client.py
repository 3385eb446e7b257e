"""The unmodified `anthropic` client against the front door: what it can do, and which exceptions it raises."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from backends.backend import DeadlineExceeded, Overloaded, Rejected, Unavailable
from gateway.errors import ApiError

ASK: Any = {"model": "auto", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello?"}]}


@pytest.fixture
def client(front: Any) -> Iterator[Anthropic]:
    with Anthropic(base_url=front.url, api_key="any", max_retries=0, timeout=60) as made:
        yield made


def test_a_message(client: Anthropic, front: Any) -> None:
    raw = client.messages.with_raw_response.create(
        **ASK, system="Be brief.", stop_sequences=["END"], extra_body={"temperature": 0.5, "top_k": 3}
    )
    message = raw.parse()
    assert [(block.type, block.text) for block in message.content if block.type == "text"] == [
        ("text", "Hello")
    ]
    assert (message.role, message.type, message.stop_reason) == ("assistant", "message", "end_turn")
    assert message.model == raw.headers["x-headrace-tier"] == "7b"
    assert message._request_id == raw.headers["x-request-id"]
    request = front.dispatcher.requests[0]
    assert request.endpoint == "messages"
    assert [m.content for m in request.prompt.messages] == ["Be brief.", "Hello?"]
    assert (request.max_tokens, request.temperature, request.top_k, request.stop) == (9, 0.5, 3, ("END",))
    assert message.id == f"msg_{request.id}"


def test_cached_tokens_are_counted_once(client: Anthropic) -> None:
    with client.messages.stream(**ASK) as stream:
        starts = [event.message.usage for event in stream if event.type == "message_start"]
        final = stream.get_final_message().usage
    for usage in (client.messages.create(**ASK).usage, final):
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (4, 8, 3)
        assert usage.cache_creation_input_tokens == 0
    assert [(usage.input_tokens, usage.cache_read_input_tokens) for usage in starts] == [(0, 0)]


def test_the_events_of_a_stream(client: Anthropic, front: Any) -> None:
    front.dispatcher.script.finish = "length"
    events = list(client.messages.create(**ASK, stream=True))
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    delta = events[-2]
    assert delta.type == "message_delta"
    assert (delta.delta.stop_reason, delta.usage.output_tokens) == ("max_tokens", 3)


def test_the_bytes_of_a_stream(front: Any) -> None:
    body = json.dumps({**ASK, "stream": True}).encode()
    request = urllib.request.Request(
        f"{front.url}/v1/messages",
        body,
        {"content-type": "application/json", "anthropic-version": "2023-06-01"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        events = [block.split("\n") for block in answer.read().decode().strip().split("\n\n")]
    for name, data in events:
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert events[1] == ["event: ping", 'data: {"type":"ping"}']
    assert events[-1] == ["event: message_stop", 'data: {"type":"message_stop"}']


async def test_the_stream_helper_of_the_asynchronous_client(front: Any) -> None:
    front.dispatcher.script.stopped_by = "END"
    async with AsyncAnthropic(base_url=front.url, api_key="any", max_retries=0) as client:
        async with client.messages.stream(**ASK) as stream:
            assert [text async for text in stream.text_stream] == ["Hel", "lo"]
            message = await stream.get_final_message()
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")


def test_a_count(client: Anthropic, front: Any) -> None:
    ask = {name: ASK[name] for name in ("model", "messages")}
    assert client.messages.count_tokens(**ask, system="Be brief.").input_tokens == 12
    request = front.dispatcher.requests[0]
    assert (request.model, len(request.prompt.messages)) == ("auto", 2)
    front.eventually(lambda: front.dispatcher.running == 0)
    with pytest.raises(anthropic.BadRequestError, match="messages"):
        client.messages.count_tokens(model="auto", messages=[])


def refusals() -> list[Any]:
    limit = ApiError(429, "Slow.", type="requests", code="rate_limit_exceeded", headers={"retry-after": "7"})
    large = ApiError(413, "Long.", code="request_too_large")
    return [
        pytest.param(Rejected("Too long."), anthropic.BadRequestError, 400, "invalid_request_error", id="rejected"),
        pytest.param(ApiError(403, "No."), anthropic.PermissionDeniedError, 403, "permission_error", id="closed"),
        pytest.param(ApiError(404, "No."), anthropic.NotFoundError, 404, "not_found_error", id="unknown"),
        pytest.param(large, anthropic.APIStatusError, 413, "request_too_large", id="large"),
        pytest.param(limit, anthropic.RateLimitError, 429, "rate_limit_error", id="limit"),
        pytest.param(Overloaded("Full."), anthropic.APIStatusError, 529, "overloaded_error", id="overloaded"),
        pytest.param(DeadlineExceeded("Late."), anthropic.APIStatusError, 504, "timeout_error", id="deadline"),
        pytest.param(Unavailable("Gone."), anthropic.InternalServerError, 502, "api_error", id="unavailable"),
        pytest.param(RuntimeError("secret"), anthropic.InternalServerError, 500, "api_error", id="unforeseen"),
    ]  # fmt: skip


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("refusal", "raised", "status", "kind"), refusals())
def test_errors_before_the_first_byte(
    client: Anthropic,
    front: Any,
    refusal: Exception,
    raised: type[anthropic.APIStatusError],
    status: int,
    kind: str,
    stream: bool,
) -> None:
    front.dispatcher.script.refusal = refusal
    with pytest.raises(raised) as error:
        client.messages.create(**ASK, stream=stream)
    assert error.value.status_code == status
    body: Any = error.value.body
    assert set(body) == {"type", "error", "request_id"}
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert error.value.request_id == body["request_id"]
    assert "secret" not in error.value.response.text


def test_what_is_not_there_is_told_in_its_own_shape(client: Anthropic) -> None:
    for attempt in (
        lambda: client.messages.batches.list(),
        lambda: client.messages.batches.retrieve("batch_1"),
    ):
        with pytest.raises(anthropic.NotFoundError) as error:
            attempt()
        body: Any = error.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
        assert error.value.request_id == body["request_id"]


@pytest.mark.parametrize(
    ("breakage", "kind"),
    [(Unavailable("The engine died."), "api_error"), (DeadlineExceeded("Late."), "timeout_error")],
)
def test_an_error_in_mid_stream(client: Anthropic, front: Any, breakage: Exception, kind: str) -> None:
    front.dispatcher.script.breakage = breakage
    types = []
    with pytest.raises(anthropic.APIStatusError) as error:
        for event in client.messages.create(**ASK, stream=True):
            types.append(event.type)
    assert types[-1] == "content_block_delta"
    body: Any = error.value.body
    assert body["error"]["type"] == kind
    front.eventually(lambda: front.dispatcher.running == 0)


def test_a_key_may_come_in_either_header(serve: Callable[..., Any]) -> None:
    with serve(anonymous=None) as front:
        for name, value in (("x-api-key", "hr_tenant"), ("authorization", "Bearer hr_tenant")):
            assert ask(front.url, {name: value}) == 200
        for headers in ({"x-api-key": "wrong"}, {"x-api-key": ""}, {}):
            assert ask(front.url, headers) == 401
        assert ask(front.url, {"authorization": "Bearer wrong", "x-api-key": "hr_tenant"}) == 401
        with Anthropic(base_url=front.url, api_key="wrong", max_retries=0) as client:
            with pytest.raises(anthropic.AuthenticationError):
                client.messages.create(**ASK)


def ask(url: str, headers: dict[str, str]) -> int:
    request = urllib.request.Request(
        f"{url}/v1/messages", json.dumps(ASK).encode(), {"content-type": "application/json", **headers}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            assert json.loads(error.read())["error"]["type"] == "authentication_error"
            return error.code


def test_a_refusal_names_the_field(client: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="thinking: this is not supported"):
        client.messages.create(**ASK, thinking={"type": "enabled", "budget_tokens": 1024})


def test_the_models_as_this_client_reads_them(client: Anthropic) -> None:
    page = client.models.list()
    assert [(model.id, model.type, model.display_name) for model in page.data] == [
        (name, "model", name) for name in ("auto", "7b", "70b", "org/big", "small")
    ]
    assert (page.first_id, page.last_id, page.has_more) == ("auto", "small", False)
    assert [model.id for model in client.models.list()] == [model.id for model in page.data]
    seven = client.models.retrieve("7b")
    assert seven.created_at.year > 2000 and seven.max_input_tokens == 2048
