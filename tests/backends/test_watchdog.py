"""Engines that hang, in real processes: noticed, killed, started again; and left alone where they only rest."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path

import pytest

from backends.backend import BackendError, Generation, Prompt, Sampling, Unavailable
from backends.local import LocalBackend
from backends.supervisor import Supervisor
from backends.tokenizer import Tokenizer
from backends.wire import EngineConfig

STEP_TIMEOUT = 1.0  # seconds
MARGIN = 60.0  # on a machine that may stall, for the end of a process and the news of it
ENDLESS = 100_000  # tokens

Served = tuple[Supervisor, LocalBackend]
Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve(engine_config: Callable[..., EngineConfig], fake_command: list[str], byte_model: Path) -> Serve:
    """A supervised engine and a backend on it: `serve("fake", step_timeout=1.0)`."""

    @asynccontextmanager
    async def serve(
        model: str = "fake", step_timeout: float = STEP_TIMEOUT, ready_timeout: float = 60.0
    ) -> AsyncIterator[Served]:
        config = engine_config(model=model, step_timeout=step_timeout)
        async with Supervisor([config], command=fake_command, ready_timeout=ready_timeout) as supervisor:
            backend = LocalBackend(config, Tokenizer(byte_model), 8192, lambda event: None)
            await backend.start()
            yield supervisor, backend
            await backend.close()

    return serve


async def answer(backend: LocalBackend, max_tokens: int) -> str:
    work = Generation(
        id="g", prompt=Prompt(text="abc"), ids=list(b"abc"), sampling=Sampling(max_tokens=max_tokens)
    )
    async with aclosing(backend.stream(work)) as stream:
        return "".join([delta.text async for delta in stream])


async def failure(backend: LocalBackend) -> BackendError:
    with pytest.raises(BackendError) as error:
        await answer(backend, ENDLESS)
    return error.value


async def assert_all_end(backend: LocalBackend, streams: list[asyncio.Task[BackendError]]) -> None:
    """With the right error and in time; then the engine is back."""
    async with asyncio.timeout(1.5 * STEP_TIMEOUT + MARGIN):
        errors = await asyncio.gather(*streams)
    assert {(type(error), error.code) for error in errors} == {(Unavailable, "engine_died")}
    assert backend.in_flight == 0
    await until(lambda: backend.available)
    assert await answer(backend, 3) == "abc"


@pytest.mark.parametrize("tokens", [1, 500])
async def test_a_step_that_does_not_end(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tokens: int
) -> None:
    """Be it the first, of which an engine that was idle has told nothing yet."""
    monkeypatch.setenv("HEADRACE_FAULT", f"stall_after_tokens:{tokens}")
    async with serve() as (supervisor, backend):
        monkeypatch.delenv("HEADRACE_FAULT")  # its next life is a better one
        began = time.monotonic()
        await assert_all_end(backend, [asyncio.create_task(failure(backend)) for _ in range(3)])
        assert time.monotonic() - began >= STEP_TIMEOUT
        assert supervisor.restarts == {"e/0": 1}
    assert "engine e/0 made no step in 1 s; started again in 0.2 s" in caplog.text


@pytest.mark.parametrize("idle", [False, True])
async def test_a_process_that_is_frozen(serve: Serve, idle: bool) -> None:
    async with serve() as (supervisor, backend):
        assert await answer(backend, 3) == "abc"
        pid = supervisor.pids["e/0"]
        if idle:
            os.kill(pid, signal.SIGSTOP)
        streams = [asyncio.create_task(failure(backend)) for _ in range(3)]
        await until(lambda: backend.in_flight == 3)
        if not idle:
            await asyncio.sleep(0.2)
            os.kill(pid, signal.SIGSTOP)
        await assert_all_end(backend, streams)
        assert supervisor.restarts == {"e/0": 1}


async def test_long_steps_are_no_hang(serve: Serve) -> None:
    async with serve("slow", step_timeout=3.0) as (supervisor, backend):
        assert await answer(backend, 2) == "ab"  # of 1.6 s each, which is above half the limit
        assert supervisor.restarts == {"e/0": 0}


async def test_an_engine_that_rests_is_left_in_peace(serve: Serve) -> None:
    async with serve() as (supervisor, backend):
        await answer(backend, 3)
        await asyncio.sleep(2.5 * STEP_TIMEOUT)
        assert supervisor.restarts == {"e/0": 0}
        assert await answer(backend, 3) == "abc"


async def test_a_second_life_that_does_not_come_up_is_ended_and_tried_again_ever_more_slowly(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(ready_timeout=4.0) as (supervisor, backend):
        monkeypatch.setenv("FAKE_MODEL", "stuck")
        os.kill(supervisor.pids["e/0"], signal.SIGKILL)
        told = "engine e/0 did not answer within 4 s; started again in"
        await until(lambda: f"{told} 0.4 s" in caplog.text)
        await until(lambda: f"{told} 0.8 s" in caplog.text)
        monkeypatch.delenv("FAKE_MODEL")
        await until(lambda: backend.available)
        assert await answer(backend, 3) == "abc"


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)
