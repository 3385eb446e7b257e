"""Clients that go away, read slowly or not at all."""

import asyncio
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from gateway import protocol


def post(path: str = "/v1/chat/completions", **fields: Any) -> bytes:
    body = json.dumps({"model": "7b", "messages": [{"role": "user", "content": "x"}], **fields}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_its_answer_runs(front: Any, stream: bool) -> None:
    front.dispatcher.script.pause = 3600.0
    with front.connect() as raw:
        raw.sendall(post(stream=stream))
        front.eventually(lambda: front.dispatcher.pulled == 1)
        assert front.dispatcher.running == 1
    front.eventually(lambda: front.dispatcher.running == 0)
    front.eventually(lambda: len(front.exchanges) == 1)
    assert front.exchanges[0].status == 499
    assert front.drain.running == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_before_its_answer_begins(front: Any, stream: bool) -> None:
    front.dispatcher.script.wait = 3600.0
    with front.connect() as raw:
        raw.sendall(post(stream=stream))
        front.eventually(lambda: front.dispatcher.waiting == 1)
    front.eventually(lambda: front.dispatcher.waiting == 0)
    front.eventually(lambda: len(front.exchanges) == 1)
    assert front.exchanges[0].status == 499


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_has_said_all_is_answered_at_once_or_not(front: Any, stream: bool) -> None:
    """It closes its own side, as `nc -N` does; nobody can see whether it still reads."""
    with front.connect() as raw:
        raw.sendall(post(stream=stream))
        raw.shutdown(socket.SHUT_WR)
        with raw.makefile("rb") as answer:
            said = answer.read()  # up to the end of the connection
    assert said.startswith(b"HTTP/1.1 200 ") and b"Hel" in said
    front.eventually(lambda: [exchange.status for exchange in front.exchanges] == [200])
    front.dispatcher.script.pause = 3600.0
    with front.connect() as raw:
        raw.sendall(post(stream=stream))
        raw.shutdown(socket.SHUT_WR)
        front.eventually(lambda: front.dispatcher.pulled > 3)
        front.eventually(lambda: front.dispatcher.running == 0)


def test_a_client_that_leaves_while_it_sends_its_body(front: Any) -> None:
    with front.connect() as raw:
        raw.sendall(post()[:-10])
        front.eventually(lambda: front.drain.running == 1)
    front.eventually(lambda: [exchange.status for exchange in front.exchanges] == [499])
    assert front.dispatcher.requests == []


def test_a_slow_reader_pauses_the_work(front: Any) -> None:
    """Nothing is produced for a client that does not read, beyond what the sockets hold."""
    front.dispatcher.script.texts = ["x" * 100_000] * 500
    with front.connect() as raw:
        raw.sendall(post(stream=True))
        front.eventually(lambda: front.dispatcher.pulled > 3)
        front.eventually(lambda: stands_still(front))
        assert front.dispatcher.pulled < 250
        received = 0
        while received < 50_000_000:
            received += len(raw.recv(1 << 20))
        front.eventually(lambda: front.dispatcher.closed == 1)
        assert front.dispatcher.pulled == 500


def stands_still(front: Any) -> bool:
    before = front.dispatcher.pulled
    time.sleep(0.5)
    return bool(front.dispatcher.pulled == before)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_takes_nothing_counts_as_gone(
    front: Any, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(protocol, "WRITE_TIMEOUT", 0.3)
    front.dispatcher.script.texts = ["x" * 1_000_000] * 50
    with front.connect() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.sendall(post(stream=stream))
        front.eventually(lambda: front.dispatcher.pulled > 0 and front.connections == 0)
        front.eventually(lambda: len(front.exchanges) == 1)
        assert front.dispatcher.closed == 1
        assert front.exchanges[0].status == (499 if stream else 200)  # all of the whole one was handed over


def test_a_quiet_stream_is_kept_alive(serve: Callable[..., Any]) -> None:
    """Headers go out with the first comment; the chunks name the tier once there is one."""
    with serve(keepalive_after=0.2) as front:
        front.dispatcher.script.wait = 0.7
        front.dispatcher.script.pause = 0.5
        with front.connect() as raw:
            raw.sendall(post(stream=True))
            received = read_to(raw, b"[DONE]\n\n")
    head, _, events = received.partition(b"\r\n\r\n")
    assert b"x-headrace-tier: pending" in head
    assert events.index(b": keep-alive\n\n") < events.index(b"data: ")
    assert events.count(b": keep-alive\n\n") >= 3
    assert b'"model":"7b"' in events


def test_an_error_after_the_headers_of_a_quiet_stream(serve: Callable[..., Any]) -> None:
    with serve(keepalive_after=0.1) as front:
        front.dispatcher.script.wait = 0.5
        front.dispatcher.script.refusal = RuntimeError("secret")
        with front.connect() as raw:
            raw.sendall(post(stream=True))
            received = read_to(raw, b"0\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b'data: {"error":{"message":' in received
    assert b"[DONE]" not in received and b"secret" not in received


def test_a_busy_stream_needs_no_comments(front: Any) -> None:
    with front.connect() as raw:
        raw.sendall(post(stream=True))
        received = read_to(raw, b"[DONE]\n\n")
    assert b"keep-alive\n" not in received
    assert b"x-headrace-tier: 7b" in received
    assert b"content-type: text/event-stream" in received


def test_text_cannot_begin_an_event(front: Any) -> None:
    front.dispatcher.script.texts = ["a\n\ndata: [DONE]\n\n", "\r\u2028b"]
    with front.connect() as raw:
        raw.sendall(post(stream=True))
        received = read_to(raw, b"data: [DONE]\n\n")
    events = received.partition(b"\r\n\r\n")[2].decode()
    lines = [line for line in events.replace("\r\n", "\n").split("\n") if line.startswith("data: ")]
    texts = [json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in lines[:-1]]
    assert "".join(texts) == "a\n\ndata: [DONE]\n\n\r\u2028b"


def read_to(raw: socket.socket, end: bytes) -> bytes:
    received = b""
    while end not in received:
        data = raw.recv(65536)
        assert data, received
        received += data
    return received


@pytest.mark.parametrize(("stream", "end"), [(True, b"[DONE]\n\n\r\n0\r\n\r\n"), (False, b"}}}")])
def test_remembered_before_the_end_and_settled_after_it(front: Any, stream: bool, end: bytes) -> None:
    """Who has read [DONE] can go on with the session, and does not wait for the limits."""
    front.dispatcher.script.settling = 1.0
    with front.connect() as raw:
        for number in range(3):
            raw.sendall(post(stream=stream))
            read_to(raw, end)
            assert (front.dispatcher.remembered, front.dispatcher.closed) == (number + 1, 0)
        assert front.drain.running == 3
        front.leave(patience=60.0)
        front.eventually(lambda: front.drain.running == 0)
    assert front.dispatcher.closed == 3
    front.eventually(lambda: [exchange.status for exchange in front.exchanges] == [200] * 3)


def test_a_client_that_leaves_with_its_whole_answer_is_not_gone(front: Any) -> None:
    front.dispatcher.script.settling = 0.3
    with front.connect() as raw:
        raw.sendall(post(stream=True))
        read_to(raw, b"[DONE]\n\n\r\n0\r\n\r\n")
    front.eventually(lambda: len(front.exchanges) == 1)
    assert front.exchanges[0].status == 200
    assert front.dispatcher.closed == 1


def test_many_clients_leave_at_once(front: Any) -> None:
    front.dispatcher.script.pause = 3600.0

    async def leave(stream: bool) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(post(stream=stream))
        await writer.drain()
        await asyncio.sleep(0.3)
        writer.close()
        await writer.wait_closed()

    async def everyone() -> None:
        await asyncio.gather(*(leave(bool(number % 2)) for number in range(100)))

    asyncio.run(everyone())
    front.eventually(lambda: len(front.exchanges) == 100)
    front.eventually(lambda: front.dispatcher.running == 0 and front.drain.running == 0)
    assert front.dispatcher.closed == len(front.dispatcher.requests)
