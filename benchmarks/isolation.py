"""What eight streams feel of a long prompt that arrives among them: 6,000 tokens on SmolLM2 135M.

The time between two tokens of a stream, its 99th percentile over all streams: first undisturbed, then from the arrival
of the prompt to its first token. The floor is three times the undisturbed one, so ratio = 3 × undisturbed / disturbed.
Once with the step budget as it is by default, once, for comparison, with the whole prompt in one step.
"""

import dataclasses
import os
import random
import time
from pathlib import Path
from statistics import quantiles

import msgspec

from backends.engine.engine import Engine
from backends.engine.runner import load_runner
from backends.wire import Band, EngineConfig, Sampling, Submit
from benchmarks.engine_options import model_folder
from benchmarks.pages import as_engines_are_started
from benchmarks.report import Report, Row, arguments, machine, paired, publish

MODEL = "smollm2-135m-instruct"
STREAMS, PROMPT = 8, 64  # tokens of each stream's prompt
CONTEXT = 2048  # of a stream, which is followed by another when that is full
LONG, QUICK_LONG = 6000, 1500  # tokens
UNDISTURBED = 100  # tokens of each stream
FLOOR = 3.0  # times the undisturbed gap
CHUNKED = "isolation, chunked"
WHOLE = "no chunking"
ENDLESS = 1e9  # ms


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """Milliseconds between two tokens, and what the long prompt had of it: seconds to its first token, and steps."""

    undisturbed: list[float]
    disturbed: list[float]
    first_token: float
    steps: int


class Bench:
    """The engine in this process, as its own loop drives it."""

    def __init__(self, folder: Path, threads: int, long: int) -> None:
        self._long = long
        self._config = EngineConfig(
            name="bench", model=str(folder), socket="", vocabulary="", cores=threads,
            kv_blocks=(STREAMS * CONTEXT + long) // 16 + 64,
            bands=(Band(rows=2 * STREAMS, ttft_ms=200),),  # so that the prompt need not wait for a stream to end
        )  # fmt: skip
        self._runner, _, self._vocabulary, self._context = load_runner(self._config)
        self._runner.set_threads(threads)

    def run(self, seed: int, *, chunked: bool) -> Round:
        """On an engine with an empty cache."""
        config = self._config
        if not chunked:
            config = msgspec.structs.replace(config, token_budget=2 * self._long, step_budget_ms=ENDLESS)
        engine = Engine(
            config, self._runner, [b"x"] * self._vocabulary, frozenset(), self._vocabulary, self._context
        )
        streams = Streams(engine, seed, self._vocabulary)
        streams.until(UNDISTURBED)
        undisturbed = streams.gaps()
        prompt = streams.tokens(self._long)
        began, steps = time.perf_counter(), engine.load().steps
        streams.submit("long", prompt, 1)
        streams.until_told("long")
        first_token, steps = time.perf_counter() - began, engine.load().steps - steps
        return Round(undisturbed, streams.gaps(), first_token, steps)


class Streams:
    """Answers that never end, and when their tokens came."""

    def __init__(self, engine: Engine, seed: int, vocabulary: int) -> None:
        self._engine = engine
        self._draw = random.Random(seed)
        self._vocabulary = vocabulary
        self._last: dict[str, float] = {}
        self._gaps: dict[str, list[float]] = {}
        self._told: set[str] = set()
        self._count = 0
        for _ in range(STREAMS):
            self._begin()
        while len(self._last) < STREAMS:
            self._step()
        self.gaps()

    def tokens(self, count: int) -> list[int]:
        """Random ids, so that no prompt shares a prefix with another."""
        return [self._draw.randrange(1000, self._vocabulary) for _ in range(count)]

    def submit(self, id: str, prompt: list[int], answer: int) -> None:
        sampling = Sampling(max_tokens=answer, temperature=0.0, ignore_eos=True)
        refused = self._engine.submit(b"", Submit(id=id, prompt=prompt, sampling=sampling))
        if refused is not None:
            raise RuntimeError(refused.message)

    def until(self, count: int) -> None:
        """Until the streams have so many gaps on average."""
        while sum(map(len, self._gaps.values())) < count * STREAMS:
            self._step()

    def until_told(self, id: str) -> None:
        while id not in self._told:
            self._step()

    def gaps(self) -> list[float]:
        """Milliseconds between tokens since the last call."""
        gaps = [gap for each in self._gaps.values() for gap in each]
        self._gaps = {}
        return gaps

    def _begin(self) -> None:
        self._count += 1
        self.submit(f"stream {self._count}", self.tokens(PROMPT), CONTEXT - PROMPT)

    def _step(self) -> None:
        told = self._engine.step()
        now = time.perf_counter()
        for _, output in told:
            self._told.add(output.id)
            if not output.id.startswith("stream"):
                continue
            if output.id in self._last:
                self._gaps.setdefault(output.id, []).append(1000 * (now - self._last[output.id]))
            self._last[output.id] = now
            if output.finish is not None:
                self._begin()


def row(case: str, rounds: list[Round]) -> Row:
    pairs = [(p99(each.disturbed), FLOOR * p99(each.undisturbed)) for each in rounds]
    last = rounds[-1]
    return paired(
        case,
        pairs,
        peer_name=f"{FLOOR:g} times the undisturbed p99",
        unit="ms between tokens, p99",
        higher_is_better=False,
        details={
            "undisturbed p99, ms": round(p99(last.undisturbed), 1),
            "seconds to the long prompt's first token": round(last.first_token, 1),
            "steps meanwhile": last.steps,
        },
    )


def p99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98]


def main() -> None:
    parser = arguments(__doc__ or "", threads=os.cpu_count() or 1)
    options = parser.parse_args()
    folder = model_folder(parser, MODEL)
    as_engines_are_started("benchmarks.isolation")
    bench = Bench(folder, options.threads, QUICK_LONG if options.quick else LONG)
    rounds: dict[str, list[Round]] = {CHUNKED: [], WHOLE: []}
    for seed in range(1 if options.quick else 3):
        for case in rounds:
            rounds[case].append(bench.run(seed, chunked=case == CHUNKED))
    rows = [row(case, done) for case, done in rounds.items()]
    publish(Report(name="isolation", machine=machine(), rows=rows), options.json)


if __name__ == "__main__":
    main()
