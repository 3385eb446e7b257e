"""HTTP as bytes: what is refused, with which status, and that the connection is left in order."""

import re
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway import protocol
from gateway.config import Tenant
from tests.serving.raw_http import HEAD, closed, error, read

BODY = b'{"model": "7b", "messages": [{"role": "user", "content": "x"}]}'


def test_a_body_of_20_megabytes(front: Any) -> None:
    answer = httpx.post(f"{front.url}/v1/chat/completions", json={"pad": "x" * 20_000_000}, timeout=60)
    assert answer.status_code == 413
    assert error(answer.content)["code"] == "request_too_large"
    assert answer.headers["x-request-id"]


def test_a_body_too_long_by_its_header_is_not_read(front: Any) -> None:
    with front.connect() as raw:
        raw.sendall(HEAD + b"content-length: 20000000\r\nexpect: 100-continue\r\n\r\n")
        status, _, body = read(raw)
    assert status == 413
    assert error(body)["code"] == "request_too_large"


def test_a_chunked_body_is_cut_where_it_gets_too_long(serve: Callable[..., Any]) -> None:
    with serve(max_body_bytes=1000) as front, front.connect() as raw:
        raw.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(5):
            raw.sendall(b"190\r\n" + b" " * 400 + b"\r\n")
        status, _, body = read(raw)
    assert status == 413
    assert error(body)["code"] == "request_too_large"
    assert front.dispatcher.requests == []


def test_the_connection_can_be_used_after_a_body_too_long(serve: Callable[..., Any]) -> None:
    with serve(max_body_bytes=1000) as front, front.connect() as raw:
        raw.sendall(HEAD + b"content-length: 5000\r\n\r\n" + b" " * 5000)
        assert read(raw)[0] == 413
        raw.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
        assert read(raw)[0] == 200


def test_a_slow_body(serve: Callable[..., Any]) -> None:
    with serve(body_timeout=0.3) as front, front.connect() as raw:
        raw.sendall(HEAD + b"content-length: 100\r\n\r\n")
        started = time.monotonic()
        for _ in range(4):
            time.sleep(0.05)
            raw.sendall(b" ")  # a byte now and then buys no time
        status, headers, body = read(raw)
        assert (status, error(body)["code"]) == (408, "request_timeout")
        assert time.monotonic() - started < 30
        assert headers["connection"] == "close"
        assert closed(raw)


def test_a_slow_head(front: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT", 1.0)
    with front.connect() as raw:
        raw.sendall(b"POST /v1/chat/comp")
        time.sleep(0.1)
        raw.sendall(b"letions HTTP/1.1\r\nhost:")
        assert read(raw)[0] == 408
        assert closed(raw)
    with front.connect() as silent:
        assert closed(silent)


def test_a_slow_head_after_a_response(front: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with front.connect() as raw:
        raw.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert read(raw)[0] == 200
        monkeypatch.setattr(protocol, "HEAD_TIMEOUT", 0.2)
        raw.sendall(b"GET /livez HTTP")
        assert read(raw)[0] == 408


def test_a_long_answer_outlives_the_time_for_a_head(front: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT", 0.7)
    front.dispatcher.script.wait = 1.0
    with front.connect() as raw:
        raw.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
        assert read(raw)[0] == 200


def test_a_request_in_the_body_of_another_is_not_answered(front: Any) -> None:
    """Content-Length beside Transfer-Encoding: servers disagree about where such a request ends."""
    with front.connect() as raw:
        raw.sendall(
            HEAD + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
            b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
        )
        status, headers, body = read(raw)
        assert (status, error(body)["code"]) == (400, "invalid_http")
        assert headers["connection"] == "close"
        assert closed(raw)


def test_a_coding_besides_chunked_is_not_taken_for_what_it_holds(front: Any) -> None:
    with front.connect() as raw:
        chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
        raw.sendall(HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n" + chunk)
        status, headers, body = read(raw)
        assert (status, error(body)["code"], headers["connection"]) == (400, "invalid_framing", "close")
        assert closed(raw)


def test_what_comes_behind_a_body_is_no_header(serve: Callable[..., Any]) -> None:
    """Proxies check and strip the head alone."""
    chunk = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
    trailers = b"authorization: Bearer hr_admin\r\nx-request-id: trailer\r\nhost: other\r\n\r\n"
    with serve(anonymous=None) as front, front.connect() as raw:
        raw.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk + trailers)
        status, headers, _ = read(raw)
    assert status == 401 and headers["x-request-id"] != "trailer"
    with serve() as front, front.connect() as raw:
        raw.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk + trailers)
        assert read(raw)[0] == 200
        assert front.dispatcher.requests[0].tenant.name == "anonymous"
        raw.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
        assert read(raw)[0] == 200


def test_what_comes_behind_a_body_without_end(front: Any) -> None:
    with front.connect() as raw:
        raw.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
        try:
            for _ in range(20_000):
                raw.sendall(b"a: b\r\n" * 100)
        except OSError:
            return
        assert read(raw)[0] == 431


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost : x\r\n\r\n",
        b"GET / HTTP/1.1\nhost: x\n\n",
        b"CONNECT x:80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
def test_what_is_not_http(front: Any, head: bytes) -> None:
    with front.connect() as raw:
        raw.sendall(head + b"\r\n\r\n")
        with raw.makefile("rb") as answer:
            head, _, body = answer.read().partition(b"\r\n\r\n")  # read() ends when the connection does
    assert head.startswith(b"HTTP/1.1 400 ")
    assert error(body)["code"] == "invalid_http"
    assert httpx.get(f"{front.url}/livez").status_code == 200


@pytest.mark.parametrize(
    "begin", [b"GET / HTTP/1.1\r\nhost: localhost\r\na: ", b"GET /", b"GET / HTTP/1.1\r\n"]
)
def test_a_head_without_end(front: Any, begin: bytes) -> None:
    with front.connect() as raw:
        raw.sendall(begin)
        with pytest.raises(OSError):
            for _ in range(1000):
                raw.sendall(b"x" * 50_000)
    assert httpx.get(f"{front.url}/livez").status_code == 200


@pytest.mark.parametrize("size", [protocol.MAX_HEAD - 1000, protocol.MAX_HEAD])
def test_a_large_head(front: Any, size: int) -> None:
    head = b"GET /livez HTTP/1.1\r\nhost: localhost\r\na: " + b"x" * size
    with front.connect() as raw:
        for at in range(0, len(head), 30_000):
            raw.sendall(head[at : at + 30_000])
        if size < protocol.MAX_HEAD:
            raw.sendall(b"\r\n\r\n")
            assert read(raw)[0] == 200
            raw.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")  # each request has its own room
            assert read(raw)[0] == 200
        else:
            status, _, body = read(raw)
            assert (status, error(body)["code"]) == (431, "headers_too_large")
            assert closed(raw)


def test_requests_that_come_in_one_piece_are_answered_in_order(front: Any) -> None:
    one = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
    other = b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    with front.connect() as raw, raw.makefile("rb") as answers:
        raw.sendall(one + other)
        said = answers.read()
    assert re.findall(rb"HTTP/1.1 (\d+) ", said) == [b"200", b"404"]


@pytest.mark.parametrize("wanted", ["h2c", "websocket"])
@pytest.mark.parametrize("at_once", [True, False])
def test_who_asks_for_another_protocol_gets_this_one(front: Any, wanted: str, at_once: bool) -> None:
    """Java's HTTP client asks for h2c with its first request, and goes on with the connection."""
    head = HEAD + f"connection: Upgrade, HTTP2-Settings\r\nupgrade: {wanted}\r\n".encode()
    head += b"content-length: %d\r\n\r\n" % len(BODY)
    with front.connect() as raw:
        for _ in range(2):
            if at_once:
                raw.sendall(head + BODY)
            else:
                raw.sendall(head)
                time.sleep(0.05)
                raw.sendall(BODY)
            assert read(raw)[0] == 200
    assert len(front.dispatcher.requests) == 2


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/v1/models", "x/livez?"),
        ("//v1/models", "x"),
        ("/livez/../v1/models", "x"),
        ("/livez;/v1/models", "x"),
        ("/metrics", "localhost"),
        ("http://livez", "x"),
        ("http://x/livez/../v1/models", "x"),
        ("http://x//livez", "livez"),
        ("/v1%2Fmodels", "x"),
        ("/livez%00", "x"),
        ("/livez%2F..%2Fv1/models", "x"),
        ("/.%2Flivez", "x"),
        ("/livez#/v1/models", "x"),
        ("/%6Civez/", "x"),
        ("/nowhere", "x"),
    ],
)
def test_no_path_is_open_by_a_trick(serve: Callable[..., Any], path: str, host: str) -> None:
    with serve(anonymous=None) as front, front.connect() as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        status, _, body = read(raw)
    assert (status, error(body)["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    "target", ["http://x/v1/models", "HTTPS://u@y:1/v1/models?", "http://livez/v1/models"]
)
def test_an_absolute_target_is_its_path(serve: Callable[..., Any], target: str) -> None:
    for anonymous, expected in ((Tenant(name="anonymous"), 200), (None, 401)):
        with serve(anonymous=anonymous) as front, front.connect() as raw:
            raw.sendall(f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            assert read(raw)[0] == expected
            assert front.exchanges[0].endpoint == "models"


def test_a_stream_for_http_1_0_has_no_chunks_and_ends_with_the_connection(front: Any) -> None:
    body = BODY.replace(b"}]}", b'}], "stream": true}')
    with front.connect() as raw:
        raw.sendall(HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + b"content-length: %d\r\n\r\n" % len(body) + body)
        with raw.makefile("rb") as file:
            head, _, stream = file.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"transfer-encoding" not in head
    lines = [line for line in stream.splitlines() if line]
    assert all(line.startswith(b"data: ") for line in lines) and lines[-1] == b"data: [DONE]"
    front.eventually(lambda: front.dispatcher.running == 0)


def test_an_answer_for_http_1_0_has_its_length(front: Any) -> None:
    with front.connect() as raw:
        raw.sendall(HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
        status, headers, body = read(raw)
        assert status == 200 and len(body) == int(headers["content-length"])
        assert closed(raw)
