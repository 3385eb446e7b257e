"""One of several processes that serve a gateway's requests; see `gateway.workers.parent`."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from backends.backend import BackendError
from gateway.app import Place, Works
from gateway.config import Config
from gateway.dashboard.record import Record
from gateway.dashboard.share import Share
from gateway.drain import Drain
from gateway.errors import ApiError
from gateway.logs import configure_logging
from gateway.metrics_shared import count_in
from gateway.reload import Apply, Version
from gateway.server import Door, bind, serve
from gateway.workers import messages
from gateway.workers.channel import Channel, ChannelLost
from gateway.workers.messages import (
    Check,
    Current,
    Done,
    Failed,
    Find,
    Gather,
    Hold,
    Look,
    Opened,
    Outcome,
    Ping,
    Refresh,
    Refusal,
    Reload,
    Rollback,
    Start,
)

GATHERING = 3.0  # seconds; the parent is done with it sooner
LOST = "The gateway's parent process does not answer."


class OverTheParent:
    """The other workers, and what they and the parent do together. `Siblings` and `Changes` in one."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def shares(self) -> Sequence[Share]:
        return messages.shares.decode(await self._gather(Look()))

    async def find(self, request_id: str) -> Record | None:
        found = messages.records.decode(await self._gather(Find(id=request_id)))
        return next((record for record in found if record is not None), None)

    async def refresh(self) -> None:
        await self._gather(Refresh())

    async def current(self) -> Version:
        return await self._change(Current())

    async def reload(self) -> Version:
        return await self._change(Reload())

    async def rollback(self) -> Version:
        return await self._change(Rollback())

    def hang_up(self) -> None:
        """It is the parent that is told to reload."""

    async def _gather(self, question: Look | Find | Refresh) -> bytes:
        """Of the parent alone where it does not answer: nobody's."""
        try:
            return await self._channel.ask(messages.encode(Gather(question=question)), GATHERING)
        except (ChannelLost, TimeoutError):
            return messages.as_array([])

    async def _change(self, question: Current | Reload | Rollback) -> Version:
        try:
            told = messages.changed.decode(await self._channel.ask(messages.encode(question)))
        except ChannelLost as error:
            raise ApiError(503, LOST, type="server_error", code="parent_lost") from error
        if isinstance(told, Refusal):
            raise ApiError(told.status, told.message, code=told.code)
        return told.version


class _Worker:
    """What it is while it lives."""

    def __init__(self) -> None:
        self._started: asyncio.Future[Start] = asyncio.get_running_loop().create_future()
        self._serving: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._works: asyncio.Future[Works] = asyncio.get_running_loop().create_future()
        self._checked: tuple[Config, Apply] | None = None

    async def reply(self, body: bytes) -> bytes:
        """To a question of the parent's."""
        match messages.to_worker.decode(body):
            case Start() as start:
                self._started.set_result(start)
                return messages.encode(await self._serving)
            case Ping():
                return messages.encode(Done())
            case Refresh():
                (await self._works).refresh()
                return messages.encode(Done())
            case Look():
                return messages.encode((await self._works).overview.share())
            case Find(id=id):
                return messages.encode(await (await self._works).overview.own_request(id))
            case Check(config=config):
                return messages.encode(await self._check(config))
            case Hold(config=config):
                return messages.encode(await self._hold(config))

    async def _check(self, config: Config) -> Outcome:
        try:
            self._checked = config, await (await self._works).prepare(config)
        except ValueError as error:
            return Failed(reason=str(error))
        return Done()

    async def _hold(self, config: Config) -> Outcome:
        """One that came too late for the check checks now."""
        if self._checked is None or self._checked[0] != config:
            outcome = await self._check(config)
            if isinstance(outcome, Failed):
                return outcome
        assert self._checked is not None
        _, apply = self._checked
        self._checked = None
        await apply()
        return Done()

    async def serve(self, parent: OverTheParent) -> bool:
        """Until a signal. Returns whether it came to that; if not, the parent has been told why."""
        start = await self._started
        try:
            await self._serve(start, parent)
        except (BackendError, ValueError, OSError) as error:
            if self._serving.done():
                raise
            self._serving.set_result(Failed(reason=str(error)))
            return False
        return True

    async def _serve(self, start: Start, parent: OverTheParent) -> None:
        config, drain, shared = start.config, Drain(), Path(start.shared)
        configure_logging(config.telemetry.log_level, config.telemetry.log_format)
        count_in(shared, start.name)
        place = Place(engines=start.engines, shared=shared, siblings=parent, changes=parent)
        works = Works(config, drain, place)
        gateway = works.gateway(parent)
        server = config.server
        with ExitStack() as listeners:
            doors = [Door(gateway.front, listeners.enter_context(bind(server.host, start.port, share=True)))]
            if server.admin is not None and gateway.admin is not None and start.admin_port is not None:
                listener = bind(server.admin.host, start.admin_port, share=True)
                doors.append(Door(gateway.admin, listeners.enter_context(listener)))
            self._works.set_result(works)
            await serve(
                doors, drain, server.drain_timeout, lambda: self._serving.set_result(Opened()), parent.hang_up
            )


async def main(end: socket.socket) -> int:
    """Serve as the parent at the other `end` says. Returns the exit status."""
    worker = _Worker()
    channel = await Channel.over(end, worker.reply)
    listening = asyncio.create_task(channel.run())
    served = await worker.serve(OverTheParent(channel))
    if not served:
        await channel.finish(1.0)  # the parent is told why
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    return 0 if served else 1
