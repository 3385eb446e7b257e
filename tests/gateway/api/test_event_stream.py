"""Events that are there at once go in one piece; none is held back for one that may never come."""

from typing import Any

from starlette.types import Message

from gateway.api.sse import EventStream


class Sent:
    """What went to the server, the bodies alone."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.ended = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self.bodies.append(message["body"])
            self.ended = not message.get("more_body", False)


async def opened() -> tuple[EventStream, Sent]:
    sent = Sent()
    stream = EventStream(sent)
    await stream.start({})
    return stream, sent


async def test_what_more_follows_goes_with_it() -> None:
    stream, sent = await opened()
    await stream.event(b"1", more=True)
    await stream.event(b"2", more=True)
    assert sent.bodies == []
    await stream.event(b"3")
    await stream.event(b"4")
    assert sent.bodies == [b"data: 1\n\ndata: 2\n\ndata: 3\n\n", b"data: 4\n\n"]


async def test_whatever_follows_takes_along_what_waits_and_keeps_the_order() -> None:
    error: dict[str, Any] = {"error": 1}
    stream, sent = await opened()
    await stream.event(b"1", more=True)
    await stream.comment({})
    await stream.event(b"2", more=True)
    await stream.events([{"n": 3}])
    await stream.event(b"4", more=True)
    await stream.broken([error])
    assert b"".join(sent.bodies) == (
        b'data: 1\n\n: keep-alive\n\ndata: 2\n\ndata: {"n":3}\n\ndata: 4\n\ndata: {"error":1}\n\n'
    )
    assert sent.ended


async def test_the_end_takes_along_what_waits() -> None:
    stream, sent = await opened()
    await stream.event(b"1", more=True)
    await stream.done([{"n": 2}])
    assert sent.bodies == [b'data: 1\n\ndata: {"n":2}\n\ndata: [DONE]\n\n']
    assert sent.ended
