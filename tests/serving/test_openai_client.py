"""The unmodified `openai` client against the front door: what it can do, and which exceptions it raises."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from backends.backend import DeadlineExceeded, Overloaded, Rejected, Unavailable
from gateway.errors import ApiError

ASK: Any = [{"role": "user", "content": "Hello?"}]
USAGE: Any = {"include_usage": True}


@pytest.fixture
def client(front: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{front.url}/v1", api_key="any", max_retries=0, timeout=60) as made:
        yield made


def test_a_chat(client: OpenAI, front: Any) -> None:
    raw = client.chat.completions.with_raw_response.create(model="auto", messages=ASK)
    answer = raw.parse()
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.model == raw.headers["x-headrace-tier"] == "7b"
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        12,
        3,
        15,
    )
    assert answer.usage.prompt_tokens_details.cached_tokens == 8
    assert answer.id == f"chatcmpl-{front.dispatcher.requests[0].id}"
    assert answer._request_id == raw.headers["x-request-id"]


def test_an_answer_can_be_sent_back_as_it_came(client: OpenAI, front: Any) -> None:
    message = client.chat.completions.create(model="auto", messages=ASK).choices[0].message
    history: Any = [*ASK, message, {"role": "user", "content": "Go on."}]
    client.chat.completions.create(model="auto", messages=history)
    assert [m.role for m in front.dispatcher.requests[1].prompt.messages] == ["user", "assistant", "user"]


def test_a_stream(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="auto", messages=ASK, stream=True))
    assert [c.choices[0].delta.content for c in chunks] == ["", "Hel", "lo", None]
    assert [c.choices[0].delta.role for c in chunks] == ["assistant", None, None, None]
    assert [c.choices[0].finish_reason for c in chunks] == [None, None, None, "stop"]
    assert {c.object for c in chunks} == {"chat.completion.chunk"}
    assert len({c.id for c in chunks}) == 1
    assert all("usage" not in c.model_fields_set for c in chunks)


def test_a_stream_with_usage(client: OpenAI) -> None:
    stream = client.chat.completions.create(model="7b", messages=ASK, stream=True, stream_options=USAGE)
    *chunks, last = stream
    assert all("usage" in c.model_fields_set and c.usage is None for c in chunks)
    assert last.choices == []
    assert last.usage is not None and last.usage.total_tokens == 15


def test_a_completion_and_its_stream(client: OpenAI, front: Any) -> None:
    whole = client.completions.create(model="7b", prompt="Say", max_tokens=4)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("Hello", "stop")
    assert whole.object == "text_completion"
    *chunks, last = client.completions.create(model="7b", prompt="Say", stream=True, stream_options=USAGE)
    assert "".join(c.choices[0].text for c in chunks) == "Hello"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.usage is not None and last.usage.completion_tokens == 3
    assert front.dispatcher.requests[0].prompt.text == "Say"
    assert front.dispatcher.requests[0].endpoint == "completions"


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["auto", "7b", "70b", "org/big", "small"]
    assert client.models.retrieve("org/big").owned_by == "headrace"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.models.retrieve("gpt-5")
    assert unknown.value.code == "model_not_found"


def refusals() -> list[Any]:
    limit = ApiError(429, "Slow.", type="requests", code="rate_limit_exceeded", headers={"retry-after": "7"})
    return [
        pytest.param(Rejected("Too long."), openai.BadRequestError, 400, "context_length_exceeded", id="rejected"),
        pytest.param(limit, openai.RateLimitError, 429, "rate_limit_exceeded", id="limit"),
        pytest.param(Overloaded("Full."), openai.InternalServerError, 503, "server_is_overloaded", id="overloaded"),
        pytest.param(DeadlineExceeded("Late."), openai.InternalServerError, 504, "deadline_exceeded", id="deadline"),
        pytest.param(Unavailable("Gone."), openai.InternalServerError, 502, "engine_died", id="unavailable"),
        pytest.param(RuntimeError("secret"), openai.InternalServerError, 500, "internal_error", id="unforeseen"),
    ]  # fmt: skip


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("refusal", "raised", "status", "code"), refusals())
def test_errors_before_the_first_byte(
    client: OpenAI,
    front: Any,
    refusal: Exception,
    raised: type[openai.APIStatusError],
    status: int,
    code: str,
    stream: bool,
) -> None:
    front.dispatcher.script.refusal = refusal
    with pytest.raises(raised) as error:
        client.chat.completions.create(model="7b", messages=ASK, stream=stream)
    assert (error.value.status_code, error.value.code) == (status, code)
    assert error.value.request_id
    assert isinstance(error.value.body, dict)
    assert set(error.value.body) == {"message", "type", "param", "code"}
    assert "secret" not in error.value.response.text and "Traceback" not in error.value.response.text


def test_only_what_a_retry_can_mend_is_retried(front: Any) -> None:
    front.dispatcher.script.refusal = DeadlineExceeded("Late.")
    with OpenAI(base_url=f"{front.url}/v1", api_key="any", max_retries=2) as client:
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="7b", messages=ASK)
    assert len(front.dispatcher.requests) == 1


def test_a_key_is_needed_where_nobody_is_anonymous(serve: Callable[..., Any]) -> None:
    with serve(anonymous=None) as front:
        with OpenAI(base_url=f"{front.url}/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError) as error:
                client.chat.completions.create(model="7b", messages=ASK)
            assert error.value.code == "invalid_api_key"
        with OpenAI(base_url=f"{front.url}/v1", api_key="hr_tenant", max_retries=0) as client:
            assert client.chat.completions.create(model="7b", messages=ASK).model == "7b"
            assert [model.id for model in client.models.list()] == ["auto", "7b", "small"]
    assert [request.tenant.name for request in front.dispatcher.requests] == ["tenant"]


@pytest.mark.parametrize(
    ("breakage", "code"),
    [
        (Unavailable("The engine died."), "engine_died"),
        (DeadlineExceeded("Late."), "deadline_exceeded"),
        (RuntimeError("secret"), "internal_error"),
    ],
)
def test_an_error_in_mid_stream(client: OpenAI, front: Any, breakage: Exception, code: str) -> None:
    front.dispatcher.script.breakage = breakage
    texts = []
    with pytest.raises(openai.APIError) as error:
        for chunk in client.chat.completions.create(model="7b", messages=ASK, stream=True):
            texts.append(chunk.choices[0].delta.content)
    assert texts == ["", "Hel", "lo"]
    assert error.value.code == code
    assert "secret" not in str(error.value)
    front.eventually(lambda: front.dispatcher.running == 0)


@pytest.mark.parametrize(("finish", "code"), [(None, "upstream_eof"), ("abort", "engine_error")])
def test_an_answer_that_only_stops_coming_is_an_error(
    client: OpenAI, front: Any, finish: Any, code: str
) -> None:
    front.dispatcher.script.finish = finish
    with pytest.raises(openai.APIError) as error:
        list(client.chat.completions.create(model="7b", messages=ASK, stream=True))
    assert error.value.code == code
    with pytest.raises(openai.InternalServerError) as whole:
        client.chat.completions.create(model="7b", messages=ASK)
    assert whole.value.code == code


def test_draining(client: OpenAI, front: Any) -> None:
    """What runs may end; what runs too long gets an error; nothing new is taken."""
    front.dispatcher.script.pause = 0.4
    stream = client.chat.completions.create(model="7b", messages=ASK, stream=True)
    assert next(stream).choices[0].delta.role == "assistant"
    front.leave(patience=10.0)
    with pytest.raises(openai.InternalServerError) as refused:
        client.chat.completions.create(model="7b", messages=ASK)
    assert (refused.value.status_code, refused.value.code) == (503, "draining")
    assert refused.value.response.headers["retry-after"] == "1"
    assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "stop"


def test_draining_cuts_what_runs_too_long(client: OpenAI, front: Any) -> None:
    front.dispatcher.script.pause = 30.0
    outcomes: list[str | None] = []

    def ask() -> None:
        with pytest.raises(openai.InternalServerError) as error:
            client.chat.completions.create(model="7b", messages=ASK)
        outcomes.append(error.value.code)

    whole = threading.Thread(target=ask)
    whole.start()
    stream = client.chat.completions.create(model="7b", messages=ASK, stream=True)
    next(stream)
    front.eventually(lambda: front.dispatcher.running == 2)
    front.leave(patience=0.1)
    with pytest.raises(openai.APIError) as error:
        list(stream)
    assert error.value.code == "draining"
    whole.join(60)
    assert outcomes == ["draining"]
    front.eventually(lambda: front.dispatcher.running == 0)
