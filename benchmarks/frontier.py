"""What is given for what: the cap of a batch against speed and the wait for a first token, and formats of weights.

`cap N`: the same requests arrive at the same moments, at seven tenths of what a batch of 32 can do, with prompts and
answers of 16 to 128 tokens; against a cap of 32. A small batch makes them wait for a place, a large one for each
other. `format …`: memory, perplexity, speed of decoding and the time to the first token of a prompt of 512, in one
line each; against bfloat16.
"""

import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import msgspec
import tokenizers
import torch

from backends.engine.engine import Engine
from backends.engine.runner import load_runner
from backends.wire import Band, EngineConfig, Sampling, Submit
from benchmarks import formats
from benchmarks.engine_options import model_folder
from benchmarks.pages import as_engines_are_started
from benchmarks.report import Report, Row, arguments, machine, paired, publish

MODEL = "smollm2-135m-instruct"
CAPS, MIDDLE = (4, 8, 16, 32, 64, 128), 32
SHORTEST, LONGEST = 16, 128  # tokens of prompts and of answers
KV_BLOCKS = max(CAPS) * 2 * LONGEST // 16
USED = 0.7  # of the speed of a full batch of MIDDLE


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float  # seconds after the start
    prompt: list[int]
    answer: int  # tokens


@dataclass(frozen=True, slots=True)
class Outcome:
    first_tokens: list[float]  # milliseconds from the arrival, of each request
    rate: float  # tokens per second, from the first arrival to the last token

    @property
    def p95(self) -> float:
        return quantiles(self.first_tokens, n=20, method="inclusive")[18]


class Bench:
    """The engine in this process, as its own loop drives it."""

    def __init__(self, folder: Path, threads: int) -> None:
        self._config = EngineConfig(
            name="bench", model=str(folder), socket="", vocabulary="", cores=threads,
            kv_blocks=KV_BLOCKS, quantization="auto",
        )  # fmt: skip
        self._runner, _, self._vocabulary, self._context = load_runner(self._config)
        self._runner.set_threads(threads)

    def arrivals(self, seed: int, count: int, rate: float) -> list[Arrival]:
        """So many requests, at random moments, of `rate` tokens of answers per second on average."""
        draw = random.Random(seed)
        gap = (SHORTEST + LONGEST) / 2 / rate
        moment, found = 0.0, []
        for _ in range(count):
            prompt = [draw.randrange(1000, self._vocabulary) for _ in range(draw.randint(SHORTEST, LONGEST))]
            found.append(Arrival(moment, prompt, draw.randint(SHORTEST, LONGEST)))
            moment += draw.expovariate(1 / gap)
        return found

    def run(self, cap: int, arrivals: list[Arrival]) -> Outcome:
        """On an engine with an empty cache and so many rows."""
        config = msgspec.structs.replace(
            self._config, bands=(Band(rows=cap, ttft_ms=1000),), interactive_sequences=cap, max_sequences=cap
        )
        engine = Engine(
            config, self._runner, [b"x"] * self._vocabulary, frozenset(), self._vocabulary, self._context
        )
        first: dict[str, float] = {}
        began, sent, count = time.perf_counter(), 0, 0
        while engine.has_work or sent < len(arrivals):
            now = time.perf_counter() - began
            while sent < len(arrivals) and arrivals[sent].at <= now:
                _submit(engine, str(sent), arrivals[sent])
                sent += 1
            if not engine.has_work:
                time.sleep(max(0.0, arrivals[sent].at - now))
                continue
            for _, output in engine.step():
                count += len(output.ids)
                first.setdefault(output.id, time.perf_counter() - began)
        seconds = time.perf_counter() - began
        waits = [1000 * (first[str(number)] - each.at) for number, each in enumerate(arrivals)]
        return Outcome(waits, count / seconds)


def _submit(engine: Engine, id: str, arrival: Arrival) -> None:
    sampling = Sampling(max_tokens=arrival.answer, temperature=0.0, ignore_eos=True)
    refused = engine.submit(b"", Submit(id=id, prompt=arrival.prompt, sampling=sampling))
    if refused is not None:
        raise RuntimeError(refused.message)


def cap_rows(bench: Bench, requests: int, rounds: int) -> list[Row]:
    at_once = bench.arrivals(0, MIDDLE, 1e9)
    bench.run(MIDDLE, at_once)  # compiles kernels, fills allocators
    full = bench.run(MIDDLE, at_once).rate
    outcomes: dict[int, list[Outcome]] = {cap: [] for cap in CAPS}
    for seed in range(1, rounds + 1):
        arrivals = bench.arrivals(seed, requests, USED * full)
        for cap in CAPS:
            outcomes[cap].append(bench.run(cap, arrivals))
    rows = []
    for cap, own in outcomes.items():
        both = list(zip(own, outcomes[MIDDLE], strict=True))
        against = f"cap {MIDDLE}"
        rates = [(ours.rate, middle.rate) for ours, middle in both]
        waits = [(ours.p95, middle.p95) for ours, middle in both]
        rows.append(paired(f"cap {cap} tokens/s", rates, peer_name=against, unit="tokens/s"))
        rows.append(
            paired(f"cap {cap} ttft p95", waits, peer_name=against, unit="ms", higher_is_better=False)
        )
    return rows


def format_rows(folder: Path, rounds: int) -> list[Row]:
    ids = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(formats.TEXT.read_text()).ids
    subjects = {name: formats.Subject(folder, *how) for name, how in formats.FORMATS.items()}
    perplexity = {name: subject.perplexity(ids) for name, subject in subjects.items()}
    one, many, prefill = (formats.measure(subjects, case, rounds) for case in ("1", "32", "prefill"))
    return [
        paired(
            f"format {name}", list(zip(many[name], many[formats.PEER], strict=True)),
            peer_name=formats.PEER, unit="tokens/s, batch of 32",
            details={
                "weights, MB": round(subject.megabytes),
                "tokens/s alone": round(median(one[name]), 1),
                f"ms to the first token of a prompt of {formats.PROMPT}": round(
                    1000 * formats.PROMPT / median(prefill[name])
                ),
                "perplexity": round(perplexity[name], 3),
                "perplexity to fp32": round(perplexity[name] / perplexity["fp32"], 4),
            },
        )
        for name, subject in subjects.items()
    ]  # fmt: skip


def main() -> None:
    parser = arguments(__doc__ or "", threads=os.cpu_count() or 1)
    options = parser.parse_args()
    folder = model_folder(parser, MODEL)
    as_engines_are_started("benchmarks.frontier")
    torch.set_num_threads(options.threads)
    rows = format_rows(folder, 2 if options.quick else 9)
    bench = Bench(folder, options.threads)
    rows += cap_rows(bench, 32 if options.quick else 256, 1 if options.quick else 3)
    publish(Report(name="frontier", machine=machine(), rows=rows), options.json)


if __name__ == "__main__":
    main()
