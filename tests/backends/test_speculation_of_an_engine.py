"""Speculation in a real engine process: what a gateway sees of it, and that the words are those without."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.backend import Generation, Prompt, Sampling
from backends.local import LocalBackend
from backends.supervisor import Supervisor
from backends.tokenizer import Tokenizer
from backends.wire import EngineConfig, Event, Load, Speculation, Vocabulary

END = 260
TEXT = "The mill stands by the river."


@pytest.fixture
def start(
    engine_config: Callable[..., EngineConfig],
    write_gguf: Callable[..., Path],
    runtime: Path,
    byte_model: Path,
) -> Callable[..., Any]:
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [b""] * 32, {END: "<end>"})
    (runtime / "bytes").write_bytes(msgspec.msgpack.encode(vocabulary))
    model = str(write_gguf(runtime / "model.gguf", "llama", "F32"))

    @asynccontextmanager
    async def started(events: list[Event], **speculation: Any) -> AsyncIterator[LocalBackend]:
        config = engine_config(
            model=model, vocabulary=str(runtime / "bytes"), dtype="float32", kv_blocks=64, cores=1,
            speculation=Speculation(**speculation),
        )  # fmt: skip
        async with Supervisor([config]):
            backend = LocalBackend(config, Tokenizer(byte_model), 128, events.append)
            await backend.start()
            yield backend
            await backend.close()

    started.model = model  # type: ignore[attr-defined]
    return started


async def ask(backend: LocalBackend, seed: int) -> str:
    sampling = Sampling(max_tokens=60, seed=seed, ignore_eos=True, temperature=0.8, frequency_penalty=0.5)
    work = Generation(id="g", prompt=Prompt(text=TEXT), ids=None, sampling=sampling, task="code")
    return "".join([delta.text async for delta in backend.stream(work)])


async def test_the_words_are_those_without_and_the_load_tells_of_drafts(start: Callable[..., Any]) -> None:
    """The model drafts for itself, looked-up tokens first."""
    events: list[Event] = []
    async with start([]) as plain:
        right = [await ask(plain, seed) for seed in range(3)]
    model = start.model  # type: ignore[attr-defined]
    async with start(events, method="both", draft=model, max_tokens=4, gated=False) as drafting:
        assert [await ask(drafting, seed) for seed in range(3)] == right
        await asyncio.sleep(0.2)  # the load of an engine that has nothing to do follows at once
    load = [event for event in events if isinstance(event, Load)][-1]
    assert load.drafts > 10 and load.accepted_tokens > 20
    assert {(gate.method, gate.task) for gate in load.gates} >= {("draft", "code")}
    assert load.generation_tokens == 180 > 1.5 * load.steps


async def test_a_gate_in_a_process(start: Callable[..., Any]) -> None:
    """Whatever it decides, by the times that this machine takes, the words stay."""
    events: list[Event] = []
    async with start(events, method="draft", draft=start.model) as drafting:  # type: ignore[attr-defined]
        first, again = await ask(drafting, 1), await ask(drafting, 1)
        assert first == again
        await asyncio.sleep(0.2)
    load = [event for event in events if isinstance(event, Load)][-1]
    [gate] = load.gates
    assert gate.task == "code" and gate.reason in ("pays", "unprofitable", "probing")
    assert load.drafts >= 4
