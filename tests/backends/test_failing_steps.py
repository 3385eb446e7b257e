"""What clients see of a step that fails in a real engine: an error for all that were in it, and nothing else."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from backends.backend import Generation, Prompt, Sampling, Unavailable
from backends.local import LocalBackend
from backends.supervisor import Supervisor
from backends.tokenizer import Tokenizer
from backends.wire import EngineConfig, Event, Load

pytestmark = pytest.mark.models

PROMPTS = ("The mill stands by", "Water runs down", "A wheel turns", "The miller grinds")
ANSWER = 16  # tokens


async def stream(backend: LocalBackend, prompt: str, heard: list[str]) -> None:
    """Appends the pieces of the answer to `heard`, as they come."""
    work = Generation(
        id=prompt,
        prompt=Prompt(text=prompt),
        ids=None,
        sampling=Sampling(max_tokens=ANSWER, temperature=0.0, ignore_eos=True),
    )
    async with aclosing(backend.stream(work)) as deltas:
        async for delta in deltas:
            heard.append(delta.text)


@pytest.mark.parametrize(
    ("order", "kind"), [("fail_after_steps:10", "RuntimeError"), ("exhaust_after_steps:10", "MemoryError")]
)
async def test_those_in_the_step_fail_and_the_engine_goes_on(
    engine_config: Callable[..., EngineConfig],
    smollm2_folder: Path,
    runtime: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    order: str,
    kind: str,
) -> None:
    monkeypatch.setenv("HEADRACE_FAULT", order)
    config = engine_config(
        model=str(smollm2_folder), dtype="float32", vocabulary=str(runtime / "smollm2"), kv_blocks=32
    )
    loads: list[Load] = []

    def note(event: Event) -> None:
        if isinstance(event, Load):
            loads.append(event)

    async with Supervisor([config]) as supervisor:
        backend = LocalBackend(config, Tokenizer(smollm2_folder), 512, note)
        await backend.start()
        broken: list[list[str]] = [[] for _ in PROMPTS]
        streams = (stream(backend, prompt, heard) for prompt, heard in zip(PROMPTS, broken, strict=True))
        errors = await asyncio.gather(*streams, return_exceptions=True)
        assert [type(error) for error in errors] == [Unavailable] * len(PROMPTS)
        assert {error.code for error in errors if isinstance(error, Unavailable)} == {"engine_error"}
        whole: list[list[str]] = [[] for _ in PROMPTS]
        for prompt, heard in zip(PROMPTS, whole, strict=True):
            await stream(backend, prompt, heard)
        await until(lambda: sum(loads[-1].finished.values()) == 2 * len(PROMPTS) and not loads[-1].running)
        assert supervisor.restarts == {"e/0": 0}
        await backend.close()
    for begun, complete in zip(broken, whole, strict=True):
        assert begun
        assert "".join(complete).startswith("".join(begun))
    assert loads[-1].finished == {"error": len(PROMPTS), "length": len(PROMPTS)}
    assert loads[-1].blocks_free + loads[-1].blocks_cached == loads[-1].blocks_total
    assert f"{kind}: ordered by HEADRACE_FAULT" in caplog.text


async def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)
