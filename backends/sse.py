"""Server-sent events from a stream of bytes, cut anywhere. Format: WHATWG HTML, section 9.2.6.

Works on bytes, so that a character may be split between two chunks; `id` and `retry` mean nothing here.
"""

import msgspec

FIELD, END = b"data: ", b"\n\n"


class EventTooLarge(ValueError):
    """An event is longer than the reader is willing to hold."""


class Event(msgspec.Struct, frozen=True):
    """`type` is empty where the server named none."""

    data: bytes
    type: bytes = b""


class EventParser:
    """Feed it chunks; it gives the events that they complete. What the stream's end leaves incomplete is no event."""

    def __init__(self, limit: int) -> None:
        """`limit`: most bytes of one event."""
        self._limit = limit
        self._line = bytearray()  # not yet ended, or ended by a CR that may be half of a CRLF
        self._data: list[bytes] = []
        self._size = 0  # bytes in _data
        self._type = b""

    def feed(self, chunk: bytes) -> list[Event]:
        """Raises EventTooLarge."""
        return self._whole(chunk) or self._lines(chunk)

    def _whole(self, chunk: bytes) -> list[Event]:
        """Its events, where it is nothing but whole ones of one line of data: what nearly all servers send.

        Empty where it is anything else, or something is left from before.
        """
        if self._line or self._data or self._type or not chunk.startswith(FIELD) or not chunk.endswith(END):
            return []
        found = chunk[len(FIELD) : -len(END)].split(END + FIELD)
        if len(chunk) > self._limit or b"\r" in chunk or chunk.count(b"\n") != len(END) * len(found):
            return []
        return [Event(data) for data in found]

    def _lines(self, chunk: bytes) -> list[Event]:
        self._line += chunk
        if b"\n" not in chunk and b"\r" not in chunk:
            self._check(len(self._line))
            return []
        lines = bytes(self._line).splitlines(keepends=True)
        self._line = bytearray() if lines[-1].endswith(b"\n") else bytearray(lines.pop())
        return [event for line in lines if (event := self._take(line.rstrip(b"\r\n"))) is not None]

    def _take(self, line: bytes) -> Event | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value) + 1
            self._check(0)
        elif field == b"event":
            self._type = value
        return None  # an empty field name is a comment; other fields mean nothing here

    def _dispatch(self) -> Event | None:
        data, type = self._data, self._type
        self._data, self._size, self._type = [], 0, b""
        return Event(b"\n".join(data), type) if data else None

    def _check(self, more: int) -> None:
        if self._size + more > self._limit:
            raise EventTooLarge(f"an event of more than {self._limit} bytes")
