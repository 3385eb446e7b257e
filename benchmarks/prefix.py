"""What the prefix cache brings, what it costs where nothing is found, and how fast its tree is.

`ttft reuse`: 64 requests over 8 shared prefixes of 1,000 tokens, one at a time; the later ones of each prefix against
the same without reuse, by a salt of their own. The floor is a tenth of the time. `coding assistant`: a repository of
many files in the prompt, one of which is edited between two requests. `no-hit overhead`: the share of an engine's time
that goes into tree and keys while nothing is found, against 1%. `tree …`: see `benchmarks.radix`.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from backends.engine.engine import Engine
from backends.engine.keys import CacheKeys
from backends.engine.runner import load_runner
from backends.wire import EngineConfig, Sampling, Submit
from benchmarks import radix
from benchmarks.engine_options import model_folder
from benchmarks.pages import as_engines_are_started
from benchmarks.report import Report, Row, arguments, machine, paired, publish
from prefixcache.tree import RadixTree

MODEL = "smollm2-135m-instruct"
PREFIX, SUFFIX = 1000, 32  # tokens
KV_BLOCKS = 1600  # the shared prefixes and what comes between two uses of one; the rest is evicted
LIMIT = 1.0  # percent


@dataclass(frozen=True, slots=True)
class Size:
    prefixes: int
    requests: int  # of `ttft reuse`
    edits: int
    files: int  # of the repository, 150 tokens each
    unlike: int  # requests that share nothing
    sequences: int  # for the trees


WHOLE = Size(prefixes=8, requests=64, edits=24, files=40, unlike=32, sequences=radix.SEQUENCES)
QUICK = Size(prefixes=4, requests=16, edits=6, files=12, unlike=8, sequences=2000)
FILE = 150  # tokens


@dataclass(frozen=True, slots=True)
class First:
    """Of one request: milliseconds to its first token, and how many tokens of the prompt were found."""

    ms: float
    cached: int


class Bench:
    """The engine in this process, as its own loop drives it."""

    def __init__(self, folder: Path, threads: int) -> None:
        config = EngineConfig(
            name="bench", model=str(folder), socket="", vocabulary="", cores=threads,
            kv_blocks=KV_BLOCKS,
        )  # fmt: skip
        runner, _, self._vocabulary, context = load_runner(config)
        runner.set_threads(threads)
        vocabulary = [b"x"] * self._vocabulary
        self._engine = Engine(config, runner, vocabulary, frozenset(), self._vocabulary, context)
        self.draw = random.Random(0)
        self._asked = 0

    def tokens(self, count: int) -> list[int]:
        return [self.draw.randrange(1000, self._vocabulary) for _ in range(count)]

    def ask(self, prompt: list[int], *, reuse: bool = True, answer: int = 1) -> First:
        """Alone on the engine, to the end of its answer. Without `reuse` nobody else has its salt."""
        self._asked += 1
        id = str(self._asked)
        sampling = Sampling(max_tokens=answer, temperature=0.0, ignore_eos=True)
        submit = Submit(id=id, prompt=prompt, sampling=sampling, salt=b"" if reuse else id.encode())
        began, first = time.perf_counter(), None
        refused = self._engine.submit(b"", submit)
        if refused is not None:
            raise RuntimeError(refused.message)
        while self._engine.has_work:
            told = self._engine.step()
            if told and first is None:
                first = First(1000 * (time.perf_counter() - began), told[0][1].cached)
        self._engine.cache_changes()
        assert first is not None
        return first

    def pair(self, prompt: list[int]) -> tuple[First, First]:
        """With reuse, then without."""
        return self.ask(prompt), self.ask(prompt, reuse=False)


def shared_prompts(bench: Bench, size: Size) -> Row:
    prefixes = [bench.tokens(PREFIX) for _ in range(size.prefixes)]
    for prefix in prefixes:
        bench.ask(prefix + bench.tokens(bench.draw.randint(1, SUFFIX)))
    later = (prefixes[turn % size.prefixes] for turn in range(size.requests - size.prefixes))
    pairs = [bench.pair(prefix + bench.tokens(bench.draw.randint(1, SUFFIX))) for prefix in later]
    return compared("ttft reuse", pairs, {})


def coding_assistant(bench: Bench, size: Size) -> Row:
    """What was edited last comes last, as assistants order it: the part before the edited file is found again."""
    files = [bench.tokens(FILE) for _ in range(size.files)]
    bench.ask(sum(files, []))
    pairs, asked = [], 0
    for _ in range(size.edits):
        file = files.pop(bench.draw.randrange(size.files // 2, size.files))
        at = bench.draw.randrange(FILE - 10)
        files.append(file[:at] + bench.tokens(10) + file[at + 10 :])
        prompt = sum(files, []) + bench.tokens(SUFFIX)
        asked += len(prompt)
        pairs.append(bench.pair(prompt))
    found = sum(ours.cached for ours, _ in pairs) / asked
    return compared("coding assistant", pairs, {"share of the prompts found": round(found, 2)})


def compared(case: str, pairs: list[tuple[First, First]], details: dict[str, Any]) -> Row:
    times = [(ours.ms, theirs.ms) for ours, theirs in pairs]
    hits = {"requests": len(pairs), "with a hit": sum(ours.cached > 0 for ours, _ in pairs)}
    return paired(
        case, times, peer_name="without reuse", unit="ms to the first token", higher_is_better=False,
        details=hits | details,
    )  # fmt: skip


class Meter:
    """Seconds inside the metered calls, counted once where one calls another."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def metered(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return call(*args, **kwargs)
            self._inside, began = True, time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began
                self._inside = False

        return timed


@contextmanager
def metering() -> Iterator[Meter]:
    """Meters everything public that trees and keys do."""
    meter, plain = Meter(), []
    for owner in (RadixTree, CacheKeys):
        for name, call in vars(owner).items():
            if callable(call) and not name.startswith("_"):
                plain.append((owner, name, call))
    for owner, name, call in plain:
        setattr(owner, name, meter.metered(call))
    try:
        yield meter
    finally:
        for owner, name, call in plain:
            setattr(owner, name, call)


def overhead(bench: Bench, size: Size) -> Row:
    """Prompts of 200 tokens and answers of 32 that share nothing, while older ones are evicted."""
    pairs = []
    for _ in range(size.unlike):
        with metering() as meter:
            began = time.perf_counter()
            first = bench.ask(bench.tokens(200), answer=32)
            share = 100 * meter.seconds / (time.perf_counter() - began)
        assert not first.cached
        pairs.append((share, LIMIT))
    return paired(
        "no-hit overhead", pairs, peer_name="the limit", unit="% of the time", higher_is_better=False
    )


def tree_rows(sequences: int) -> list[Row]:
    try:
        return radix.rows(sequences)
    except FileNotFoundError as missing:
        print(f"tree rows are left out: {missing}")
        return []


def main() -> None:
    parser = arguments(__doc__ or "", threads=os.cpu_count() or 1)
    options = parser.parse_args()
    folder = model_folder(parser, MODEL)
    as_engines_are_started("benchmarks.prefix")
    size = QUICK if options.quick else WHOLE
    rows = tree_rows(size.sequences)
    bench = Bench(folder, options.threads)
    bench.ask(bench.tokens(64))  # compiles kernels, fills allocators
    rows += [shared_prompts(bench, size), coding_assistant(bench, size), overhead(bench, size)]
    publish(Report(name="prefix", machine=machine(), rows=rows), options.json)


if __name__ == "__main__":
    main()
