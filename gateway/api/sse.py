"""Server-sent events on the way to a client that may read slowly."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.types import Send

from gateway.watching import End, Strike, Watcher

DONE = b"data: [DONE]\n\n"
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # tells nginx to pass each event on at once
}


class EventStream:
    """Each event is awaited until the connection takes it, so that a slow reader slows the work, not memory."""

    def __init__(self, send: Send, typed: bool = False) -> None:
        """`typed`: each event has its `type` for a name, and no [DONE] follows the last one."""
        self.started = False
        self._typed = typed
        self._send = send
        self._turn = asyncio.Lock()  # of comments, which come from a task of their own
        self._sending = False
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._kept: list[bytes] = []  # events that go with the next piece

    async def start(self, headers: Mapping[str, str]) -> None:
        """Send the status and the headers, unless a comment has done that already."""
        await self._own_turn()
        await self._start(headers)

    async def _start(self, headers: Mapping[str, str]) -> None:
        if self.started:
            return
        self.started = True
        raw = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in {**headers, **HEADERS}.items()]
        await self._pass_on({"type": "http.response.start", "status": 200, "headers": raw})

    async def events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """JSON escapes line breaks, so no text of a model can begin an event of its own."""
        if events:
            await self._write(self._frames(events))

    def keep(self, events: Sequence[Mapping[str, Any]]) -> None:
        """They go in one piece with what follows."""
        self._kept.append(self._frames(events))

    async def event(self, data: bytes, *, more: bool = False) -> None:
        """One that is JSON already, and has no name. With `more`, it goes in one piece with what follows at once."""
        self._kept.append(b"data: %s\n\n" % data)
        if not more:
            await self._write(b"")

    async def done(self, events: Sequence[Mapping[str, Any]]) -> None:
        """The end, with the last events of a complete answer."""
        await self._write(self._frames(events) + (b"" if self._typed else DONE), more=False)

    async def broken(self, events: Sequence[Mapping[str, Any]]) -> None:
        """The end of a stream that did not end well: without its events, and with [DONE], it would look complete."""
        await self._write(self._frames(events), more=False)

    def _frames(self, events: Sequence[Mapping[str, Any]]) -> bytes:
        frames = []
        for data in events:
            name = f"event: {data['type']}\n" if self._typed else ""
            frames.append(name.encode() + b"data: %s\n\n" % msgspec.json.encode(data))
        return b"".join(frames)

    def quiet(self) -> float:
        """Seconds since anything was sent."""
        return self._loop.time() - self._last

    async def comment(self, headers: Mapping[str, str]) -> None:
        """What clients pass over; it may have to start the stream. One who does not even take events gets none."""
        if self._sending:
            return
        async with self._turn:
            await self._start(headers)
            await self._piece(b": keep-alive\n\n", more=True)

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        await self._own_turn()
        await self._piece(body, more=more)

    async def _piece(self, body: bytes, *, more: bool) -> None:
        if self._kept:
            body = b"".join([*self._kept, body])
            self._kept.clear()
        await self._pass_on({"type": "http.response.body", "body": body, "more_body": more})

    async def _own_turn(self) -> None:
        """When no comment is on its way."""
        if self._turn.locked():
            async with self._turn:
                pass

    async def _pass_on(self, message: dict[str, Any]) -> None:
        self._last = self._loop.time()
        self._sending = True
        try:
            await self._send(message)
        finally:
            self._sending = False


def keep_alive(stream: EventStream, seconds: float, headers: Mapping[str, str]) -> Watcher:
    """Sends a comment whenever nothing was sent for `seconds`; strikes with what that raises."""

    def watch(strike: Strike) -> End:
        return _Heart(stream, seconds, headers, strike).stop

    return watch


class _Heart:
    """One timer, set anew when it rings too early: most streams are never quiet for so long."""

    def __init__(
        self, stream: EventStream, seconds: float, headers: Mapping[str, str], strike: Strike
    ) -> None:
        self._stream = stream
        self._seconds = seconds
        self._headers = headers
        self._strike = strike
        self._sending: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._ring)

    def stop(self) -> None:
        self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()

    def _ring(self) -> None:
        left = self._seconds - self._stream.quiet()
        if left > 0:
            self._timer = self._loop.call_later(left, self._ring)
        else:
            self._sending = self._loop.create_task(self._send())

    async def _send(self) -> None:
        try:
            await self._stream.comment(self._headers)
        except Exception as error:
            self._strike(error)
        else:
            self._timer = self._loop.call_later(self._seconds, self._ring)
