"""Grammars in a real engine process, of a small model of random weights, as a gateway's client of it sees them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from backends.backend import Delta, Generation, Prompt, Rejected, Sampling
from backends.local import LocalBackend
from backends.supervisor import Supervisor
from backends.tokenizer import Tokenizer
from backends.wire import EngineConfig, Event, Grammar, Load, Vocabulary

SIZE, END = 288, 260  # of the file of weights
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"enum": [1, None]}},
    "required": ["a", "b"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},  # random weights like blanks
}
HARMFUL = {
    "lark": "start: r0\n" + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(5000)) + '\nr5000: "a"',
    "regex": "a?" * 15_000 + "a" * 15_000,
    "json_schema": json.dumps({"allOf": [{"type": "string"}, {"type": "integer"}]}),
}

Ask = Callable[..., Any]


@pytest.fixture
async def engine(
    engine_config: Callable[..., EngineConfig],
    write_gguf: Callable[..., Path],
    runtime: Path,
    byte_model: Path,
) -> AsyncIterator[tuple[Supervisor, LocalBackend, list[Event]]]:
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [b""] * 32, {END: "<end>"})
    (runtime / "bytes").write_bytes(msgspec.msgpack.encode(vocabulary))
    model = write_gguf(runtime / "model.gguf", "llama", "F32")
    config = engine_config(
        model=str(model), vocabulary=str(runtime / "bytes"), dtype="float32", kv_blocks=64, cores=1
    )
    events: list[Event] = []
    async with Supervisor([config]) as supervisor:
        backend = LocalBackend(config, Tokenizer(byte_model), 128, events.append)
        await backend.start()
        yield supervisor, backend, events
        await backend.close()


async def ask(backend: LocalBackend, grammar: Grammar | None, **sampling: Any) -> list[Delta]:
    fields = {"max_tokens": 60, "seed": 3, "grammar": grammar, **sampling}
    work = Generation(id="g", prompt=Prompt(text="Some mills:"), ids=None, sampling=Sampling(**fields))
    return [delta async for delta in backend.stream(work)]


def text(deltas: list[Delta], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.index == index)


async def test_answers_obey_and_what_would_harm_the_engine_is_rejected_alone(
    engine: tuple[Supervisor, LocalBackend, list[Event]],
) -> None:
    supervisor, backend, events = engine
    good = Grammar("json_schema", json.dumps(SCHEMA))
    free = asyncio.create_task(ask(backend, None, ignore_eos=True))
    held = [asyncio.create_task(ask(backend, good, seed=seed, n=2, logprobs=2)) for seed in range(3)]
    for kind, source in HARMFUL.items():
        with pytest.raises(Rejected, match="^grammar: ") as error:
            await ask(backend, Grammar(kind, source))  # type: ignore[arg-type]  # a key is one of the kinds
        assert error.value.code == "invalid" and len(error.value.message) < 300
    for answers in await asyncio.gather(*held):
        assert [delta.finish for delta in answers if delta.finish] == ["stop", "stop"]
        for index in range(2):
            jsonschema.validate(json.loads(text(answers, index)), SCHEMA)
        scores = [score.data for delta in answers if delta.index == 0 for score in delta.scores]
        assert b"".join(scores).decode() == text(answers)
    assert (await free)[-1].usage is not None
    word = await ask(backend, Grammar("regex", "[a-z]{3,7}"))
    assert text(word).isalpha()
    async with asyncio.timeout(60):
        while not (loads := [event for event in events if isinstance(event, Load)]) or loads[-1].running:
            await asyncio.sleep(0.01)
    assert supervisor.restarts == {"e/0": 0}
