"""The client of OpenAI-compatible servers, against a real socket: what goes out, what comes of it, what goes wrong."""

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from backends.backend import (
    BackendError,
    DeadlineExceeded,
    Delta,
    Overloaded,
    Rejected,
    Sampling,
    Unavailable,
    Usage,
)
from backends.breaker import PAUSE, Breaker

Make = Callable[..., Any]
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
TRACEPARENT = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


def used(last: Delta) -> Usage:
    assert last.usage is not None
    return last.usage


async def test_an_answer_with_the_usage_that_the_server_reports(
    stub: Any, wire: Any, remote: Make, generation: Make
) -> None:
    stub.plays(wire.says(wire.chat("Hel", "lo", usage=USAGE)))
    async with remote(stub.url) as backend:
        *body, last = await backend.collect(generation())
        assert backend.in_flight == 0
    assert "".join(delta.text for delta in body) == "Hello"
    assert all(delta.finish is None and delta.usage is None for delta in body)
    assert last.finish == "stop"
    assert used(last) == Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=8)


async def test_what_a_filter_lets_through_comes_before_its_error(
    stub: Any, wire: Any, remote: Make, generation: Make
) -> None:
    first = {"choices": [{"delta": {"content": "Hel"}}]}
    last = {"choices": [{"delta": {"content": "lo"}, "finish_reason": "content_filter"}]}
    stub.plays(wire.says(wire.data(first, last), end=False))
    async with remote(stub.url) as backend:
        text, error = await backend.broken(generation())
        assert backend.in_flight == 0 and not backend.tripped
    assert text == "Hello"
    assert isinstance(error, Rejected) and error.code == "content_filter"


async def test_nothing_but_the_prompt_and_our_own_headers_goes_out(
    stub: Any, wire: Any, remote: Make, generation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    stub.plays(wire.says(wire.chat("Hi"), set_cookie="session=tenant-a; Path=/"))
    async with remote(stub.url) as backend:
        for _ in range(2):
            await backend.collect(generation(salt=b"\x01\xff", priority=3, traceparent=TRACEPARENT))
    assert set(stub.heard[1].headers) - {""} == {
        "host", "accept", "accept-encoding", "user-agent", "authorization", "content-type", "content-length",
        "traceparent",
    }  # fmt: skip
    assert stub.heard[1].headers["authorization"] == "Bearer sk-upstream"
    assert stub.heard[1].headers["traceparent"] == TRACEPARENT
    assert stub.heard[0].path == "/v1/chat/completions"
    assert stub.heard[0].json["messages"] == [{"role": "user", "content": "Say hello"}]
    assert stub.heard[0].json["cache_salt"] == "01ff"
    assert b"null" not in stub.heard[0].body


async def test_no_key_means_no_authorization(stub: Any, wire: Any, remote: Make, generation: Make) -> None:
    stub.plays(wire.says(wire.chat("Hi")))
    async with remote(stub.url + "/", api_key=None) as backend:
        await backend.collect(generation("Once upon"))
    assert "authorization" not in stub.heard[0].headers
    assert stub.heard[0].path == "/v1/completions"


async def test_a_connection_is_used_again(stub: Any, wire: Any, remote: Make, generation: Make) -> None:
    stub.plays(wire.says(wire.chat("Hi", usage=USAGE)))
    async with remote(stub.url) as backend:
        for _ in range(5):
            async with aclosing(backend.stream(generation())) as deltas:
                async for delta in deltas:
                    if delta.finish is not None:
                        break
    assert len({heard.connection for heard in stub.heard}) == 1


async def test_text_cut_at_every_byte(stub: Any, wire: Any, remote: Make, generation: Make) -> None:
    text = wire.chat("好", "🙂 \r\n\u2028x", usage=USAGE).replace(b"\n\n", b"\r\n\r\n: ping\r\n\r\n")
    stub.plays(wire.says(*(text[at : at + 1] for at in range(len(text)))))
    async with remote(stub.url) as backend:
        deltas = await backend.collect(generation())
    assert "".join(delta.text for delta in deltas) == "好🙂 \r\n\u2028x"


async def test_usage_is_estimated_where_the_server_gives_none(
    stub: Any, wire: Any, remote: Make, generation: Make
) -> None:
    stub.plays(wire.says(wire.chat("a", "b", "twelve chars")))
    async with remote(stub.url) as backend:
        last = (await backend.collect(generation()))[-1]
        known = (await backend.collect(generation(ids=[1, 2, 3])))[-1]
    assert used(last).completion_tokens == 1 + 1 + 3
    assert used(last).prompt_tokens == len("Say hello") // 4 + 4
    assert used(known).prompt_tokens == 3


async def test_a_stream_that_ends_before_its_answer_is_an_error(
    stub: Any, wire: Any, remote: Make, generation: Make
) -> None:
    """Whether it ends in an orderly way, by [DONE], by a cut connection or by a reset."""
    half = wire.data({"choices": [{"delta": {"content": "Hel"}}]})
    stub.plays(
        wire.says(half),
        wire.says(wire.chat("Hel", finish=None)),
        wire.breaks(wire.head(), wire.framed(half)),
        wire.breaks(wire.head(), wire.framed(half), reset=True),
    )
    async with remote(stub.url) as backend:
        for _ in range(4):
            text, error = await backend.broken(generation())
            assert (text, error.code, type(error)) == ("Hel", "upstream_eof", Unavailable)
        assert backend.in_flight == 0


async def test_an_answer_is_whole_once_its_finish_reason_came(
    stub: Any, wire: Any, remote: Make, generation: Make
) -> None:
    """A server that stalls or dies over the usage costs half a second, not the answer."""
    whole = wire.chat("Hi").removesuffix(b"data: [DONE]\n\n")
    stub.plays(wire.says(whole, end=False), wire.breaks(wire.head(), wire.framed(whole), reset=True))
    async with remote(stub.url, read_timeout=120.0) as backend:
        started = time.monotonic()
        for _ in range(2):
            deltas = await backend.collect(generation())
            assert [delta.finish for delta in deltas] == [None, "stop"]
        assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    ("frame", "kind", "code"),
    [
        ({"error": {"message": "boom", "type": "server_error", "code": None}}, Unavailable, "upstream_error"),
        ({"error": {"message": "busy", "code": 503}}, Overloaded, "server_is_overloaded"),
        (
            {"error": {"message": "bad", "type": "BadRequestError", "code": 400}},
            Rejected,
            "upstream_rejected",
        ),
        ({"error": "too many", "error_type": "overloaded"}, Overloaded, "server_is_overloaded"),
        ({"object": "error", "message": "no", "code": 500}, Unavailable, "upstream_error"),
    ],
)
async def test_an_error_inside_the_stream(
    stub: Any, wire: Any, remote: Make, generation: Make, frame: object, kind: type[BackendError], code: str
) -> None:
    stub.plays(
        wire.says(wire.data({"choices": [{"delta": {"content": "Hel"}}]}, frame) + b"data: [DONE]\n\n")
    )
    async with remote(stub.url) as backend:
        text, error = await backend.broken(generation())
    assert (text, type(error), error.code) == ("Hel", kind, code)


@pytest.mark.parametrize(
    ("status", "kind", "code", "retryable"),
    [
        (400, Rejected, "upstream_rejected", False),
        (401, Unavailable, "upstream_auth", True),
        (403, Unavailable, "upstream_auth", True),
        (404, Unavailable, "upstream_not_found", True),
        (422, Rejected, "upstream_rejected", False),
        (429, Overloaded, "server_is_overloaded", True),
        (500, Unavailable, "upstream_error", True),
        (302, Unavailable, "upstream_error", True),
        (503, Overloaded, "server_is_overloaded", True),
    ],
)
async def test_a_status_that_is_not_200(
    stub: Any,
    wire: Any,
    remote: Make,
    generation: Make,
    status: int,
    kind: type[BackendError],
    code: str,
    retryable: bool,
) -> None:
    body = {"error": {"message": "prompt 'Say hello' is bad, see http://10.0.0.7", "type": "x", "code": "y"}}
    stub.plays(wire.status(status, body, location="http://127.0.0.1:1/steal", retry_after="7"))
    async with remote(stub.url) as backend:
        _, error = await backend.broken(generation())
    assert (type(error), error.code, error.retryable) == (kind, code, retryable)
    assert "Say hello" not in error.message and "10.0.0.7" not in error.message
    if isinstance(error, Overloaded):
        assert error.retry_after == 7
    assert len(stub.heard) == 1


async def test_nobody_listens(remote: Make, generation: Make, unused_port: int) -> None:
    clock = [0.0]
    async with remote(f"http://127.0.0.1:{unused_port}/v1", Breaker(clock=lambda: clock[0])) as backend:
        assert not backend.available  # start() has found out
        clock[0] = PAUSE
        _, error = await backend.broken(generation())
    assert (type(error), error.code, error.retryable) == (Unavailable, "upstream_unreachable", True)
    assert str(unused_port) not in error.message


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def test_a_server_that_stalls(stub: Any, wire: Any, remote: Make, generation: Make) -> None:
    stub.plays(wire.says(wire.data({"choices": [{"delta": {"content": "Hel"}}]}), end=False))
    async with remote(stub.url, read_timeout=0.2) as backend:
        text, error = await backend.broken(generation())
        assert (text, type(error), error.code) == ("Hel", Unavailable, "upstream_timeout")
        await asyncio.wait_for(stub.left.wait(), 60)


async def test_a_deadline_holds_against_a_server_that_only_sends_comments(
    stub: Any, wire: Any, remote: Make, generation: Make
) -> None:
    stub.plays(wire.says(*[b": wait\n\n", 0.02] * 500))
    async with remote(stub.url) as backend:
        _, error = await backend.broken(generation(timeout=0.2))
        assert (type(error), error.retryable) == (DeadlineExceeded, False)
        await asyncio.wait_for(stub.left.wait(), 60)


@pytest.mark.parametrize(
    "garbage", [b"data: {nonsense\n\n", b"data: \xff\xfe\n\n", b"data: []\n\n", b"data: {}\n\n"]
)
async def test_nonsense(stub: Any, wire: Any, remote: Make, generation: Make, garbage: bytes) -> None:
    stub.plays(wire.says(garbage))
    async with remote(stub.url) as backend:
        _, error = await backend.broken(generation())
    assert error.code in ("upstream_protocol", "upstream_error")


@pytest.mark.parametrize("answer", [{"type": "application/json"}, {"content_encoding": "gzip"}])
async def test_an_answer_that_is_no_plain_stream_is_not_read(
    stub: Any, wire: Any, remote: Make, generation: Make, answer: dict[str, str]
) -> None:
    stub.plays(wire.says(wire.chat("Hi"), **answer))
    async with remote(stub.url) as backend:
        _, error = await backend.broken(generation())
    assert error.code == "upstream_protocol"


async def test_an_endless_event_is_cut_off(stub: Any, wire: Any, remote: Make, generation: Make) -> None:
    stub.plays(wire.says(*[b"data: " + b"x" * 65536] * 64, end=False))
    async with remote(stub.url) as backend:
        _, error = await backend.broken(generation())
    assert error.code == "upstream_too_large"


async def test_closing_the_generator_closes_the_connection_at_once(
    stub: Any, wire: Any, remote: Make, generation: Make
) -> None:
    stub.plays(wire.says(wire.data({"choices": [{"delta": {"content": "Hel"}}]}), end=False))
    async with remote(stub.url) as backend:
        deltas = backend.stream(generation())
        assert (await anext(deltas)).text == "Hel"
        assert backend.in_flight == 1
        await deltas.aclose()
        assert backend.in_flight == 0
        await asyncio.wait_for(stub.left.wait(), 60)
        assert backend.available


async def test_cancelling_while_the_server_thinks_closes_the_connection(
    stub: Any, wire: Any, remote: Make, generation: Make
) -> None:
    stub.plays(wire.says(end=False))
    async with remote(stub.url) as backend:
        waiting = asyncio.create_task(backend.collect(generation()))
        while not stub.heard:
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.wait_for(stub.left.wait(), 60)
        assert backend.in_flight == 0


async def test_closing_the_backend_ends_what_runs(
    stub: Any, wire: Any, remote: Make, generation: Make
) -> None:
    stub.plays(wire.says(wire.data({"choices": [{"delta": {"content": "Hel"}}]}), end=False))
    async with remote(stub.url) as backend:
        running = asyncio.create_task(backend.broken(generation()))
        while not stub.heard:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        await backend.close()
        text, error = await asyncio.wait_for(running, 60)
        assert (text, type(error)) == ("Hel", Unavailable)
        assert not backend.available
        _, error = await backend.broken(generation())
        assert type(error) is Unavailable


async def test_no_more_requests_at_once_than_allowed(
    stub: Any, wire: Any, remote: Make, generation: Make
) -> None:
    stub.plays(wire.says(wire.data({"choices": [{"delta": {"content": "Hel"}}]}), end=False))
    async with remote(stub.url, max_in_flight=1) as backend:
        async with aclosing(backend.stream(generation())) as deltas:
            await anext(deltas)
            assert not backend.available
            _, error = await backend.broken(generation())
            assert type(error) is Overloaded
        assert backend.available


async def test_an_error_whose_body_never_ends(stub: Any, wire: Any, remote: Make, generation: Make) -> None:
    head = b"HTTP/1.1 500 X\r\ncontent-type: text/html\r\ncontent-length: 9999999\r\n\r\nSorry"

    async def play(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await asyncio.sleep(60)

    stub.plays(play)
    async with remote(stub.url) as backend:
        _, error = await asyncio.wait_for(backend.broken(generation()), 30)
        assert error.code == "upstream_error"
        await asyncio.wait_for(stub.left.wait(), 60)


async def test_what_a_kind_of_server_cannot_do_is_refused_before_anything_is_sent(
    stub: Any, wire: Any, remote: Make, generation: Make
) -> None:
    async with remote(stub.url, kind="openai") as backend:
        _, error = await backend.broken(generation(sampling=Sampling(max_tokens=4, top_k=5)))
        assert isinstance(error, Rejected) and error.message.startswith("top_k:")
    assert stub.heard == []


async def test_a_stop_string_that_the_server_repeats_is_cut(
    stub: Any, wire: Any, remote: Make, generation: Make
) -> None:
    stub.plays(wire.says(wire.chat("one, t", "w", "o, three", finish="stop_sequence", usage=USAGE)))
    async with remote(stub.url, kind="tgi") as backend:
        deltas = await backend.collect(generation(sampling=Sampling(max_tokens=9, stop=("two", "zzz"))))
    assert "".join(delta.text for delta in deltas) == "one, "
    assert deltas[-1].finish == "stop" and used(deltas[-1]).completion_tokens == 2


async def test_a_wrong_key_is_told_to_the_operator(
    stub: Any, remote: Make, caplog: pytest.LogCaptureFixture
) -> None:
    stub.models_status = 401
    async with remote(stub.url) as backend:
        assert backend.available
    assert "refuses the gateway's key" in caplog.text and "sk-upstream" not in caplog.text
