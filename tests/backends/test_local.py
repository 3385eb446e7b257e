"""Streams from real processes over real sockets; the engine behind them is the fake one, in one test the real one."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from pathlib import Path

import msgspec
import pytest

from backends.backend import (
    BackendError,
    ChatMessage,
    DeadlineExceeded,
    Delta,
    Generation,
    Overloaded,
    Prompt,
    Rejected,
    Sampling,
    Unavailable,
)
from backends.local import LocalBackend
from backends.supervisor import Supervisor
from backends.tokenizer import Tokenizer
from backends.wire import EngineConfig, Event, Load, Snapshot, Stored, Timings
from prefixcache.affinity import block_keys

ENDLESS = 100_000  # tokens


class Rig:
    """An engine process under a supervisor, and as many backends on it as a test wants."""

    def __init__(self, config: EngineConfig, supervisor: Supervisor, tokenizer: Tokenizer) -> None:
        self.config = config
        self.supervisor = supervisor
        self.tokenizer = tokenizer
        self.backends: list[LocalBackend] = []
        self.events: list[Event] = []

    async def connect(self) -> LocalBackend:
        backend = LocalBackend(self.config, self.tokenizer, 8192, self.events.append)
        self.backends.append(backend)
        await backend.start()
        return backend

    def signal(self, signum: int) -> None:
        os.kill(self.supervisor.pids[self.config.name], signum)

    @property
    def running(self) -> int:
        """Generations in the engine, as it said last."""
        return next(event.running for event in reversed(self.events) if isinstance(event, Load))


@pytest.fixture
async def rig(
    engine_config: Callable[..., EngineConfig], fake_command: list[str], byte_model: Path
) -> AsyncIterator[Rig]:
    config = engine_config()
    async with Supervisor([config], command=fake_command) as supervisor:
        rig = Rig(config, supervisor, Tokenizer(byte_model))
        yield rig
        for backend in rig.backends:
            await backend.close()


@pytest.fixture
async def backend(rig: Rig) -> LocalBackend:
    return await rig.connect()


def generation(text: str, max_tokens: int = 20, id: str = "g", timeout: float | None = None) -> Generation:
    return Generation(
        id=id,
        prompt=Prompt(text=text),
        ids=list(text.encode()),
        sampling=Sampling(max_tokens=max_tokens),
        timeout=timeout,
    )


async def run(backend: LocalBackend, work: Generation) -> list[Delta]:
    async with aclosing(backend.stream(work)) as stream:
        return [delta async for delta in stream]


async def fail(backend: LocalBackend, work: Generation) -> BackendError:
    with pytest.raises(BackendError) as error:
        await run(backend, work)
    return error.value


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)


async def test_deltas_add_up_to_the_answer(backend: LocalBackend) -> None:
    deltas = await run(backend, generation("abc", 7))
    assert text_of(deltas) == "abcabca"
    assert sum(delta.tokens for delta in deltas) == 7
    assert all(delta.finish is None and delta.usage is None for delta in deltas[:-1])
    last = deltas[-1]
    assert last.finish == "length"
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.cached_tokens) == (3, 7, 2)
    assert last.timings == Timings(arrived=1.0, finished=2.0)
    assert backend.in_flight == 0


async def test_a_delta_holds_whole_characters(backend: LocalBackend) -> None:
    deltas = await run(backend, generation("😀ž", 12))
    assert [delta.text for delta in deltas if delta.text] == ["😀", "ž", "😀", "ž"]
    assert [delta.tokens for delta in deltas if delta.text] == [4, 2, 4, 2]


async def test_a_prompt_without_ids_is_encoded(backend: LocalBackend) -> None:
    work = Generation(id="g", prompt=Prompt(text="žluť"), ids=None, sampling=Sampling(max_tokens=6))
    deltas = await run(backend, work)
    assert text_of(deltas) == "žluť"


async def test_many_at_once(rig: Rig, backend: LocalBackend) -> None:
    texts = [f"text {number};" for number in range(16)]
    answers = asyncio.gather(*(run(backend, generation(text, 40 + len(text))) for text in texts))
    await until(lambda: backend.in_flight == 16)
    for text, deltas in zip(texts, await answers, strict=True):
        expected = (text * 10)[: 40 + len(text)]
        assert text_of(deltas) == expected
    assert backend.in_flight == 0


async def test_two_gateways_at_once(rig: Rig) -> None:
    one, other = await rig.connect(), await rig.connect()
    answers = await asyncio.gather(run(one, generation("one", 9)), run(other, generation("other", 10)))
    assert ["".join(delta.text for delta in answer) for answer in answers] == ["oneoneone", "otherother"]


async def test_closing_the_stream_aborts_the_work(rig: Rig, backend: LocalBackend) -> None:
    async with aclosing(backend.stream(generation("abc", ENDLESS))) as stream:
        await anext(stream)
        await until(lambda: rig.running == 1)
        assert backend.in_flight == 1
    assert backend.in_flight == 0
    await until(lambda: rig.running == 0)


async def test_cancelling_the_reader_aborts_the_work(rig: Rig, backend: LocalBackend) -> None:
    reader = asyncio.create_task(run(backend, generation("abc", ENDLESS)))
    await until(lambda: rig.running == 1)
    reader.cancel()
    with suppress(asyncio.CancelledError):
        await reader
    await until(lambda: rig.running == 0)


async def test_an_id_may_come_again_while_the_first_is_still_on_its_way(backend: LocalBackend) -> None:
    async with aclosing(backend.stream(generation("first", ENDLESS))) as stream:
        await anext(stream)
    deltas = await run(backend, generation("second", 6))
    assert text_of(deltas) == "second"


@pytest.mark.parametrize(
    ("order", "kind", "code"),
    [
        ("too long", Rejected, "context_length_exceeded"),
        ("too odd", Rejected, "invalid"),
        ("too many", Overloaded, "server_is_overloaded"),
        ("late", DeadlineExceeded, "deadline_exceeded"),
        ("fail", Unavailable, "engine_error"),
    ],
)
async def test_each_failure_has_its_error(
    backend: LocalBackend, order: str, kind: type[BackendError], code: str
) -> None:
    error = await fail(backend, generation(order))
    assert type(error) is kind
    assert error.code == code
    assert "fire" not in error.message  # the engine's own words are for the log
    assert backend.in_flight == 0


async def test_a_full_engine_says_when_to_come_again(backend: LocalBackend) -> None:
    error = await fail(backend, generation("too many"))
    assert isinstance(error, Overloaded) and error.retry_after == 7.5


async def test_a_killed_engine_ends_every_stream_and_comes_back(rig: Rig, backend: LocalBackend) -> None:
    streams = [asyncio.create_task(fail(backend, generation("abc", ENDLESS))) for _ in range(5)]
    await until(lambda: rig.running == 5)
    rig.signal(signal.SIGKILL)
    async with asyncio.timeout(60):
        errors = await asyncio.gather(*streams)
    assert {(type(error), error.code) for error in errors} == {(Unavailable, "engine_died")}
    assert not backend.available
    assert (await fail(backend, generation("abc"))).code == "engine_died"
    assert backend.in_flight == 0
    await until(lambda: backend.available)
    assert rig.supervisor.restarts == {"e/0": 1}
    assert "".join(delta.text for delta in await run(backend, generation("abc", 3))) == "abc"


async def test_a_crash_in_mid_answer_ends_the_stream_after_its_text(
    engine_config: Callable[..., EngineConfig],
    fake_command: list[str],
    byte_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADRACE_FAULT", "crash_after_tokens:30")
    config = engine_config()
    async with Supervisor([config], command=fake_command) as supervisor:
        rig = Rig(config, supervisor, Tokenizer(byte_model))
        backend = await rig.connect()
        text = ""
        with pytest.raises(Unavailable):
            async for delta in backend.stream(generation("abc", 100)):
                text += delta.text
        assert text
        assert ("abc" * 10).startswith(text)
        await backend.close()


async def test_a_hanging_engine_is_given_up_at_the_deadline(
    engine_config: Callable[..., EngineConfig],
    fake_command: list[str],
    byte_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADRACE_FAULT", "stall_after_tokens:5")
    config = engine_config()
    async with Supervisor([config], command=fake_command) as supervisor:
        rig = Rig(config, supervisor, Tokenizer(byte_model))
        backend = await rig.connect()
        error = await fail(backend, generation("abc", 100, timeout=0.1))
        assert isinstance(error, DeadlineExceeded)
        await backend.close()


async def test_events_come_in_order_from_a_snapshot_on(rig: Rig, backend: LocalBackend) -> None:
    await run(backend, generation("one", 1))
    await until(lambda: any(isinstance(event, Stored) for event in rig.events))
    assert isinstance(rig.events[0], Snapshot)
    assert isinstance(rig.events[1], Load)
    stored = [event for event in rig.events if isinstance(event, Stored)]
    assert stored == [Stored(engine="e/0", keys=[b"one"])]


async def test_a_restarted_engine_is_seen_from_its_new_snapshot_on(rig: Rig, backend: LocalBackend) -> None:
    await run(backend, generation("one", 1))
    await until(lambda: any(isinstance(event, Stored) for event in rig.events))
    rig.signal(signal.SIGKILL)
    await until(lambda: not backend.available)
    await until(lambda: backend.available)
    first, second = [event for event in rig.events if isinstance(event, Snapshot)]
    assert first.keys == second.keys == []
    assert len({event.incarnation for event in rig.events if isinstance(event, Load)}) == 2
    assert len([event for event in rig.events if isinstance(event, Stored)]) == 1


async def test_a_listener_that_fails_stops_nothing(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def listen(event: Event) -> None:
        raise KeyError("no such replica")

    backend = LocalBackend(rig.config, rig.tokenizer, 8192, listen)
    rig.backends.append(backend)
    await backend.start()
    assert (await run(backend, generation("abc", 3)))[-1].finish == "length"
    assert "no such replica" in caplog.text


async def test_without_an_engine_start_says_so(
    engine_config: Callable[..., EngineConfig], byte_model: Path
) -> None:
    backend = LocalBackend(
        engine_config("7b/0"), Tokenizer(byte_model), 8192, lambda event: None, start_timeout=0.3
    )
    assert not backend.available
    with pytest.raises(Unavailable, match=r"engine 7b/0 did not answer within 0\.3 s"):
        await backend.start()
    assert not backend.available


async def test_closing_ends_the_streams(rig: Rig, backend: LocalBackend) -> None:
    stream = asyncio.create_task(fail(backend, generation("abc", ENDLESS)))
    await until(lambda: backend.in_flight == 1)
    await backend.close()
    await backend.close()
    assert isinstance(await stream, Unavailable)
    assert not backend.available
    assert isinstance(await fail(backend, generation("abc")), Unavailable)


@pytest.mark.models
async def test_a_real_model_answers_and_its_cache_is_seen(
    engine_config: Callable[..., EngineConfig], smollm2_folder: Path, runtime: Path
) -> None:
    config = engine_config(
        "7b/0",
        model=str(smollm2_folder),
        vocabulary=str(runtime / "smollm2"),
        lease=str(runtime / "lease"),
        dtype="float32",  # bfloat16 may round otherwise after a cached prefix
        kv_blocks=64,
    )
    tokenizer = Tokenizer(smollm2_folder)
    question = "Name the capital of France, the river that runs through it, and one bridge across that river."
    prompt = Prompt(messages=(ChatMessage("user", question),))
    ids = await tokenizer.encode(prompt)
    work = Generation(
        id="g", prompt=prompt, ids=ids, sampling=Sampling(max_tokens=40, temperature=0), salt=b"tenant"
    )
    async with Supervisor([config]) as supervisor:
        rig = Rig(config, supervisor, tokenizer)
        backend = await rig.connect()
        first, again = await run(backend, work), await run(backend, work)
        foreign = await run(backend, msgspec.structs.replace(work, salt=b"another tenant"))
        await until(lambda: any(isinstance(e, Load) and sum(e.finished.values()) == 3 for e in rig.events))
        before = cpu_seconds(supervisor.pids["7b/0"])
        await asyncio.sleep(2)
        assert cpu_seconds(supervisor.pids["7b/0"]) - before < 0.05
        await backend.close()
    assert "Paris" in text_of(first)
    assert text_of(first) == text_of(again) == text_of(foreign)
    whole_blocks = (len(ids) - 1) // 16 * 16
    assert [cached_tokens(answer) for answer in (first, again, foreign)] == [0, whole_blocks, 0]
    told = {key for event in rig.events if isinstance(event, Stored) for key in event.keys}
    for salt in (b"tenant", b"another tenant"):
        assert told.issuperset(block_keys(salt, ids, 16))


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def cached_tokens(deltas: list[Delta]) -> int:
    assert deltas[-1].usage is not None
    return deltas[-1].usage.cached_tokens


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_warming_reads_the_prompt_and_says_nothing(rig: Rig, backend: LocalBackend) -> None:
    assert await backend.warm(generation("abc", ENDLESS))
    assert backend.in_flight == 0
    await until(lambda: not rig.running)


async def test_warming_that_is_cancelled_is_dropped(rig: Rig, backend: LocalBackend) -> None:
    warming = asyncio.create_task(backend.warm(generation("abc", ENDLESS)))
    await asyncio.sleep(0)
    assert backend.in_flight == 1
    warming.cancel()
    await asyncio.gather(warming, return_exceptions=True)
    assert backend.in_flight == 0
