"""Engines of several processes under a supervisor: they answer as one, and live and die together."""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.backend import Generation, Prompt, Sampling
from backends.engine.parallel import leader
from backends.local import LocalBackend
from backends.supervisor import Supervisor
from backends.tokenizer import Tokenizer
from backends.wire import EngineConfig, Vocabulary

Config = Callable[..., EngineConfig]
Eventually = Callable[[Callable[[], object]], Awaitable[None]]


@pytest.fixture
def config(engine_config: Config, write_gguf: Callable[..., Path], runtime: Path) -> Config:
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [b""] * 32, {})
    (runtime / "bytes").write_bytes(msgspec.msgpack.encode(vocabulary))
    model = str(write_gguf(runtime / "model.gguf", "llama", "Q8_0"))

    def make(**fields: Any) -> EngineConfig:
        return engine_config(
            model=model,
            vocabulary=str(runtime / "bytes"),
            **{"dtype": "float32", "kv_blocks": 64, "cores": 2, **fields},
        )

    return make


@asynccontextmanager
async def linked(config: EngineConfig, byte_model: Path) -> AsyncIterator[LocalBackend]:
    backend = LocalBackend(config, Tokenizer(byte_model), 128, lambda event: None)
    await backend.start()
    yield backend
    await backend.close()


async def ask(backend: LocalBackend) -> str:
    sampling = Sampling(max_tokens=40, seed=7, ignore_eos=True, temperature=0.8)
    work = Generation(
        id="g", prompt=Prompt(text="The mill stands by the river."), ids=None, sampling=sampling
    )
    return "".join([delta.text async for delta in backend.stream(work)])


def children(pid: int) -> list[int]:
    """The ranks: what else an engine starts is no module of theirs."""
    task = Path(f"/proc/{pid}/task/{pid}/children")
    pids = [int(child) for child in task.read_text().split()]
    return [pid for pid in pids if b"backends.engine.parallel" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def test_ranks_answer_as_one_and_are_started_again(
    config: Config, byte_model: Path, eventually: Eventually, caplog: pytest.LogCaptureFixture, runtime: Path
) -> None:
    async with Supervisor([config()]), linked(config(), byte_model) as backend:
        right = await ask(backend)
    divided = config(tensor_parallel=2)
    async with Supervisor([divided]) as supervisor:
        async with linked(divided, byte_model) as backend:
            assert await ask(backend) == right
        await strike(killed, supervisor, divided, byte_model, eventually)
        async with linked(divided, byte_model) as backend:
            assert await ask(backend) == right
        engine = supervisor.pids["e/0"]
        [rank] = children(engine)
    await eventually(lambda: gone(engine) and gone(rank))
    assert not list(runtime.glob("*.ranks"))
    assert "engine e/0 ended with exit status 1" in caplog.text


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_ranks_live_and_die_together(config: Config, byte_model: Path, eventually: Eventually) -> None:
    """An engine of one comes first: what it compiles, four ranks find done, and do not all compile it by themselves."""
    async with Supervisor([config()]):
        pass
    divided = config(tensor_parallel=4, step_timeout=3.0)
    async with Supervisor([divided]) as supervisor:
        for blow in (frozen, beheaded, killed):
            await strike(blow, supervisor, divided, byte_model, eventually)


Blow = Callable[[int, int, EngineConfig, Path], Awaitable[None]]


async def strike(
    blow: Blow, supervisor: Supervisor, config: EngineConfig, byte_model: Path, eventually: Eventually
) -> None:
    """All of the engine's processes end, and are started again."""
    restarts, engine = supervisor.restarts["e/0"], supervisor.pids["e/0"]
    ranks = children(engine)
    assert len(ranks) == config.tensor_parallel - 1
    await blow(engine, ranks[0], config, byte_model)
    await eventually(lambda: all(map(gone, [engine, *ranks])))
    await eventually(lambda: supervisor.restarts["e/0"] > restarts and supervisor.answering)


async def killed(engine: int, rank: int, config: EngineConfig, byte_model: Path) -> None:
    """While the engine rests."""
    os.kill(rank, signal.SIGKILL)


async def frozen(engine: int, rank: int, config: EngineConfig, byte_model: Path) -> None:
    """The engine waits for it in the middle of a step, and is found to hang."""
    os.kill(rank, signal.SIGSTOP)
    async with linked(config, byte_model) as backend:
        with pytest.raises(Exception, match="engine e/0"):
            await ask(backend)


async def beheaded(engine: int, rank: int, config: EngineConfig, byte_model: Path) -> None:
    os.kill(engine, signal.SIGKILL)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tensor_parallel": 5}, "tensor_parallel: 5 ranks cannot divide num_attention_heads, 4"),
        ({"tensor_parallel": 2, "dtype": "float16"}, "dtype: float16 needs a GPU"),
    ],
)
def test_what_cannot_be_is_refused_before_ranks_start(
    fields: dict[str, Any], reason: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "Workers", lambda *_: pytest.fail("ranks were started"))
    with pytest.raises(ValueError, match=reason):
        leader.lead(config(**fields))
