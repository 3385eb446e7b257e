"""Messages in a stream of bytes: before each stands its length, 32 bits, the most significant byte first."""

MAX_MESSAGE = 64 * 1024 * 1024  # bytes
_HEADER = 4  # bytes


class FrameError(ValueError):
    """What comes are no messages: nothing after it can be understood."""


def framed(body: bytes) -> bytes:
    """As it goes over the wire."""
    return len(body).to_bytes(_HEADER, "big") + body


class Frames:
    """Finds the messages in what arrives, wherever that was cut."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def take(self, data: bytes) -> list[bytes]:
        """The messages that are whole with `data`. Raises FrameError for one longer than MAX_MESSAGE."""
        self._rest += data
        found: list[bytes] = []
        start = 0
        while (body := start + _HEADER) <= len(self._rest):
            length = int.from_bytes(self._rest[start:body], "big")
            if length > MAX_MESSAGE:
                raise FrameError(f"a message of {length} bytes; there are at most {MAX_MESSAGE}")
            if body + length > len(self._rest):
                break
            start = body + length
            found.append(bytes(self._rest[body:start]))
        del self._rest[:start]
        return found
