"""Worker processes without anything behind them: started, asked, replaced, made to leave."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from gateway.config import Config, Remote, Server, State, Telemetry, Tenant, Tier
from gateway.workers import crew, messages
from gateway.workers.channel import Channel, Reply
from gateway.workers.crew import Crew, Worker, WorkerStartError
from gateway.workers.messages import Check, Done, Failed, Find, Gather, Hold, Look, Start
from gateway.workers.parent import reserve


def config(folder: Path, **remote: str) -> Config:
    tier = Tier(name="7b", remotes=(Remote(url="http://127.0.0.1:9/v1", model="m", **remote),))  # type: ignore[arg-type]
    return Config(
        tiers=(tier,),
        anonymous=Tenant(name="a"),
        server=Server(workers=2),
        state=State(folder=str(folder)),
        telemetry=Telemetry(log_level="error"),
    )


class Bench:
    """A crew, and what it was told."""

    def __init__(self, folder: Path, count: int, port: int, **remote: str) -> None:
        self.config = config(folder, **remote)
        self.ended: list[str] = []
        self.asked: list[bytes] = []
        self._shared = folder / "shared"
        self._shared.mkdir()
        self._port = port
        self.crew = Crew(count, self.start, self.replies, self.ended.append)

    def start(self, name: str) -> Start:
        return Start(
            name=name,
            shared=str(self._shared),
            config=self.config,
            engines=(),
            port=self._port,
            admin_port=None,
        )

    def replies(self, worker: Worker) -> Reply:
        async def reply(question: bytes) -> bytes:
            self.asked.append(question)
            return messages.as_array([])

        return reply


async def eventually(what: Callable[[], Awaitable[bool]], within: float = 90.0) -> None:
    deadline = time.monotonic() + within
    while not await what():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.1)


async def test_the_life_of_a_worker(tmp_path: Path) -> None:
    with reserve("127.0.0.1", 0) as held:
        bench = Bench(tmp_path, 1, held.getsockname()[1])
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        await bench.crew.start()
        (worker,) = bench.crew.workers
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            assert (await client.get("/livez")).status_code == 200
            assert b"headrace_draining 0.0" in (await client.get("/metrics")).content
        asked = messages.to_parent.decode(bench.asked[0])
        assert isinstance(asked, Gather) and asked.question == messages.Refresh()

        (answer,) = (await bench.crew.ask(Look(), 5.0)).values()
        (share,) = messages.shares.decode(messages.as_array([answer]))
        assert (list(share.ready), list(share.replicas), share.leaving) == (["7b"], ["7b/0"], False)
        assert messages.records.decode(messages.as_array([await worker.ask(Find(id="x"), 5.0)])) == [None]
        assert await bench.crew.ask(Look(), 5.0, but=worker) == {}

        first = worker.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)

        async def replaced() -> bool:
            return worker.pid not in (None, first) and bool(await bench.crew.ask(Look(), 5.0))

        await eventually(replaced)
        assert bench.ended == ["0"]
        second = worker.pid
        await bench.crew.stop(signal.SIGTERM, 1.0)
        assert worker.pid is None and not Path(f"/proc/{second}").exists()
        await bench.crew.stop(signal.SIGTERM, 1.0)


async def test_one_that_takes_long_to_come_up_is_not_taken_to_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine its imports alone may take longer than a worker that serves may be silent."""
    monkeypatch.setattr(crew, "HUNG", 0.1)
    monkeypatch.setattr(crew, "PING_EVERY", 0.01)
    with reserve("127.0.0.1", 0) as held:
        bench = Bench(tmp_path, 1, held.getsockname()[1])
        await bench.crew.start()
        monkeypatch.undo()
        assert bench.ended == []
        await bench.crew.stop(signal.SIGINT, 1.0)


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_parent_that_was_kept_from_listening_takes_no_worker_to_hang(
    monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    monkeypatch.setattr(crew, "HUNG", 0.4)

    async def reply(question: bytes) -> bytes:
        await asyncio.sleep(60 if hangs else 0)
        return question

    ours, theirs = socket.socketpair()
    worker = Worker("0", lambda _: pytest.fail("it has been started"), lambda _: reply, lambda _: None)
    worker._channel, other = await Channel.over(ours, reply), await Channel.over(theirs, reply)
    ends = [asyncio.create_task(end.run()) for end in (worker._channel, other)]
    asking = asyncio.create_task(worker._answers())
    await asyncio.sleep(0)
    time.sleep(0.5)
    assert await asking is not hangs
    for end in ends:
        end.cancel()
    await asyncio.gather(*ends, return_exceptions=True)


async def test_one_that_does_not_come_up_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "STARTING", 0.1)
    with reserve("127.0.0.1", 0) as held:
        bench = Bench(tmp_path, 1, held.getsockname()[1])
        with pytest.raises(WorkerStartError, match="ended with SIGKILL"):
            await bench.crew.start()


async def test_a_configuration_is_checked_then_held(tmp_path: Path) -> None:
    with reserve("127.0.0.1", 0) as held:
        bench = Bench(tmp_path, 1, held.getsockname()[1])
        await bench.crew.start()
        (worker,) = bench.crew.workers
        bad = config(tmp_path, api_key_env="NO_SUCH_KEY")
        told = messages.outcome.decode(await worker.ask(Check(config=bad), 10.0))
        assert told == Failed(reason="tier 7b/0: the environment variable NO_SUCH_KEY holds no key")
        for question in (Check(config=bench.config), Hold(config=bench.config), Hold(config=bench.config)):
            assert messages.outcome.decode(await worker.ask(question, 10.0)) == Done()
        assert isinstance(messages.outcome.decode(await worker.ask(Hold(config=bad), 10.0)), Failed)
        await bench.crew.stop(signal.SIGINT, 1.0)


async def test_one_that_cannot_serve_says_why_and_none_is_left(tmp_path: Path) -> None:
    with reserve("127.0.0.1", 0) as held:
        bench = Bench(tmp_path, 2, held.getsockname()[1], api_key_env="NO_SUCH_KEY")
        with pytest.raises(
            WorkerStartError, match=r"^tier 7b/0: the environment variable NO_SUCH_KEY holds no key$"
        ):
            await bench.crew.start()
        assert [worker.pid for worker in bench.crew.workers] == [None, None]
