"""Two engines that share the cores of one machine, with and without the core lease.

Each round: one engine works alone, then two at once with the lease, then two at once without it. Every engine has
eight streams of random ids to continue, in the type that `auto` picks, with a process of its own and as many threads
as the machine has cores. Tokens per second are those of all answers together, over the time until the last one has
ended.
"""

import asyncio
import itertools
import os
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

from backends.backend import Generation, Prompt, Sampling
from backends.local import LocalBackend
from backends.supervisor import Supervisor
from backends.tokenizer import Tokenizer
from backends.wire import EngineConfig
from benchmarks.engine_options import model_folder
from benchmarks.report import Report, arguments, machine, paired, publish

MODEL = "smollm2-135m-instruct"
STREAMS = 8  # of each engine
PROMPT, ANSWER = 64, 128  # tokens
WARM_UP = 8  # tokens


def configs(folder: Path, model: Path, cores: int) -> list[EngineConfig]:
    """Two engines with the lease, then two without."""
    return [
        EngineConfig(
            name=name,
            model=str(model),
            socket=f"{folder}/{name}.socket",
            vocabulary=f"{folder}/{name}.vocabulary",
            kv_blocks=2 * STREAMS * (PROMPT + ANSWER) // 16,
            cores=cores,
            lease=f"{folder}/lease" if name.startswith("leased") else None,
        )
        for name in ("leased-0", "leased-1", "free-0", "free-1")
    ]


class Load:
    """Streams for engines; no two prompts are alike, so that nothing is found in a cache."""

    def __init__(self) -> None:
        self._draw = random.Random(1)
        self._numbers = itertools.count()

    async def rate(self, backends: Sequence[LocalBackend], answer: int) -> float:
        """Tokens per second of all these engines together. Raises BackendError when one of them fails."""
        works = [(backend, self._generation(answer)) for backend in backends for _ in range(STREAMS)]
        started = time.perf_counter()
        tokens = await asyncio.gather(*(_tokens(backend, work) for backend, work in works))
        seconds = time.perf_counter() - started
        assert tokens == [answer] * len(works)
        return sum(tokens) / seconds

    def _generation(self, answer: int) -> Generation:
        return Generation(
            id=str(next(self._numbers)),
            prompt=Prompt(text=""),
            ids=[self._draw.randrange(1000, 40_000) for _ in range(PROMPT)],
            sampling=Sampling(max_tokens=answer, temperature=0.0, ignore_eos=True),
        )


async def _tokens(backend: LocalBackend, work: Generation) -> int:
    async with aclosing(backend.stream(work)) as stream:
        return sum([delta.tokens async for delta in stream])


async def measure(model: Path, rounds: int, cores: int) -> tuple[list[float], list[float], list[float]]:
    """By round: one engine alone, two with the lease, two without."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hr-")))
        made = configs(folder, model, cores)
        await stack.enter_async_context(Supervisor(made))
        tokenizer = Tokenizer(model)
        backends = [LocalBackend(config, tokenizer, 8192, lambda event: None) for config in made]
        for backend in backends:
            stack.push_async_callback(backend.close)
            await backend.start()
        leased, free = backends[:2], backends[2:]
        load = Load()
        for backend in backends:
            await load.rate([backend], WARM_UP)
        alone, shared, fought = [], [], []
        for _ in range(rounds):
            alone.append(await load.rate(leased[:1], ANSWER))
            shared.append(await load.rate(leased, ANSWER))
            fought.append(await load.rate(free, ANSWER))
    return alone, shared, fought


def main() -> None:
    parser = arguments(__doc__ or "")
    options = parser.parse_args()
    model = model_folder(parser, MODEL)
    cores = len(os.sched_getaffinity(0))
    alone, shared, fought = asyncio.run(measure(model, 3 if options.quick else 10, cores))
    rows = [
        paired(
            "two busy engines against one",
            list(zip(shared, alone, strict=True)),
            peer_name="one engine alone, all cores",
            unit="tokens/s",
            details={"streams of each": STREAMS, "threads of one alone": cores},
        ),
        paired(
            "two busy engines, lease on against off",
            list(zip(shared, fought, strict=True)),
            peer_name="the same two without the core lease",
            unit="tokens/s",
        ),
    ]
    publish(Report(name="two_engines", machine=machine(), rows=rows), options.json)


if __name__ == "__main__":
    main()
