"""HTTP as bytes, for tests of what a client may send."""

import json
import socket
from typing import Any

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def read(raw: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """One response with a content-length."""
    received = b""
    while b"\r\n\r\n" not in received:
        data = raw.recv(65536)
        assert data, received
        received += data
    head, _, body = received.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    while len(body) < int(headers["content-length"]):
        body += raw.recv(65536)
    return int(status.split()[1]), headers, body


def closed(raw: socket.socket) -> bool:
    try:
        return raw.recv(1) == b""
    except ConnectionResetError:
        return True


def error(body: bytes) -> dict[str, Any]:
    told = json.loads(body)["error"]
    assert set(told) == {"message", "type", "param", "code"}
    return dict(told)
