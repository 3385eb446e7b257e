"""Signals and reading ahead in a real engine process, of a small model of random weights, as a gateway sees them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.backend import Delta, Generation, Prompt, Sampling
from backends.local import LocalBackend
from backends.supervisor import Supervisor
from backends.tokenizer import Tokenizer
from backends.wire import EngineConfig, Grammar, Vocabulary

END = 260
TEXT = "The mill stands by the river, and its wheel turns when the water is high."  # 73 tokens


@pytest.fixture
async def backend(
    engine_config: Callable[..., EngineConfig],
    write_gguf: Callable[..., Path],
    runtime: Path,
    byte_model: Path,
) -> AsyncIterator[LocalBackend]:
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [b""] * 32, {END: "<end>"})
    (runtime / "bytes").write_bytes(msgspec.msgpack.encode(vocabulary))
    config = engine_config(
        model=str(write_gguf(runtime / "model.gguf", "llama", "F32")),
        vocabulary=str(runtime / "bytes"),
        dtype="float32",
        kv_blocks=64,
        cores=1,
    )
    async with Supervisor([config]):
        made = LocalBackend(config, Tokenizer(byte_model), 128, lambda event: None)
        await made.start()
        yield made
        await made.close()


async def ask(backend: LocalBackend, text: str = TEXT, **sampling: Any) -> list[Delta]:
    fields = {"max_tokens": 30, "seed": 3, "ignore_eos": True, **sampling}
    work = Generation(id="g", prompt=Prompt(text=text), ids=None, sampling=Sampling(**fields))
    return [delta async for delta in backend.stream(work)]


def said(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


async def test_a_signal_for_each_token_and_the_same_words(backend: LocalBackend) -> None:
    """Whether temperature or penalties move the choice or not."""
    ways: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.5, "top_p": 0.9, "frequency_penalty": 1.0},
    ]
    for sampling in ways:
        plain, watched = await ask(backend, **sampling), await ask(backend, signals=True, **sampling)
        assert said(plain) == said(watched)
        assert [delta.signals for delta in plain] == [()] * len(plain)
        signals = [signal for delta in watched for signal in delta.signals]
        assert len(signals) == 30 and sum(delta.tokens for delta in watched) == 30
        for signal in signals:
            assert signal.logprob <= 0 and not signal.forced
            assert signal.margin is not None and signal.margin >= 0
            assert signal.entropy is not None and 0 <= signal.entropy <= 5.7  # ln 288
    assert watched[0].cached == 64  # of the prompt, since it was asked before


async def test_greedy_choices_are_the_likeliest(backend: LocalBackend) -> None:
    watched = await ask(backend, temperature=0.0, signals=True, logprobs=2)
    signals = [signal for delta in watched for signal in delta.signals]
    scores = [score for delta in watched for score in delta.scores]
    assert [signal.logprob for signal in signals] == pytest.approx([s.logprob for s in scores], abs=1e-3)
    margins = [(score.top[0].logprob or 0) - (score.top[1].logprob or 0) for score in scores]
    assert [signal.margin for signal in signals] == pytest.approx(margins, abs=1e-3)


async def test_what_a_grammar_forces_is_marked(backend: LocalBackend) -> None:
    grammar = Grammar("regex", "Yes, it (stands|turns)\\.")
    watched = await ask(backend, signals=True, grammar=grammar, ignore_eos=False)
    signals = [signal for delta in watched for signal in delta.signals]
    assert all(signal.forced for signal in signals[:8]) and not signals[8].forced


async def test_what_was_read_ahead_is_cached(backend: LocalBackend) -> None:
    work = Generation(id="w", prompt=Prompt(text=TEXT), ids=None, sampling=Sampling(max_tokens=30))
    assert await backend.warm(work)
    warmed = await ask(backend, temperature=0.0)
    assert warmed[-1].usage is not None and warmed[-1].usage.cached_tokens == 64
    other = await ask(backend, TEXT[::-1], temperature=0.0)
    assert other[-1].usage is not None and other[-1].usage.cached_tokens == 0


async def test_reading_ahead_that_is_dropped_leaves_the_engine_to_others(backend: LocalBackend) -> None:
    work = Generation(id="w", prompt=Prompt(text=TEXT), ids=None, sampling=Sampling(max_tokens=30))
    warming = asyncio.create_task(backend.warm(work))
    await asyncio.sleep(0)
    warming.cancel()
    await asyncio.gather(warming, return_exceptions=True)
    assert len(said(await ask(backend, temperature=0.0))) > 0 and backend.in_flight == 0
