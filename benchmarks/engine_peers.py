"""Our engine beside vLLM, llama.cpp and transformers: the same models, threads and requests, in one run.

Requests of a batch come at once, with prompts of 128 random tokens and greedy answers of 128; a rate counts answers'
tokens over the whole time. `prefill` is a prompt of 512, four of them one after another, since a core that has just
been another engine's is slow at first. Ours and one peer are loaded at a time and take turns; before
each pair the memory's speed is probed, since it drifts; one answer alone reads all weights for each token, so that its
share of that speed is told. A case's row is against the peer that stands best; those beside
it are in its details. Peers are made by `make bench-peers`; those that are missing or do not start are left out.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import IO

import torch

from backends.catalogue import CATALOGUE
from backends.instructions import auto_dtype
from backends.models.checkpoint import Checkpoint, open_checkpoint
from backends.models.loader import EMBEDDING, HEAD
from backends.supervisor import HUGE_PAGES
from benchmarks.pages import as_engines_are_started
from benchmarks.peers.weights import gguf_file, hugging_face
from benchmarks.report import Report, Row, arguments, listed, machine, paired, positive, publish

ROOT = Path(__file__).parent.parent
LOGS = ROOT / ".bench" / "logs"
MODELS = {
    "135m": "smollm2-135m-instruct",
    "0.5b": "qwen2.5-coder-0.5b-instruct",
    "1.5b": "qwen2.5-coder-1.5b-instruct",
}
FORMATS = ("int8", "bf16", "int4")
GGUF = {"int8": "Q8_0", "bf16": "BF16", "int4": "Q4_0"}
TYPE = auto_dtype("cpu")  # in which peers are fastest that have no small integers
PROMPT, ANSWER, LONG = 128, 128, 512
PROBE = 256 * 1024 * 1024  # bytes
WEIGHT = {"int8": 1.0, "bf16": 2.0, "int4": 0.625}  # bytes, with its part of the scales


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    batch: int
    prompt: int = PROMPT
    answer: int = ANSWER
    turns: int = 1  # one after another

    @property
    def tokens(self) -> int:
        """What a rate counts."""
        return self.turns * (self.batch * self.answer if self.answer > 1 else self.prompt)

    def quick(self) -> "Case":
        return replace(self, prompt=min(self.prompt, 256), answer=min(self.answer, 24))


CASES = (Case("b1", 1), Case("b8", 8), Case("b32", 32), Case("prefill", 1, LONG, 1, turns=4))


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    module: str
    file: str  # gguf or folder
    formats: tuple[str, ...]  # of ours that it is put beside
    home: Path | None = None  # its virtual environment; None: ours

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.home is None else self.home / "bin" / "python"

    @property
    def installed(self) -> bool:
        return self.home is None or (self.home / ".installed").exists()


PEERS = (
    Peer("llama.cpp", "llama", "gguf", FORMATS, ROOT / ".bench" / "llama"),
    Peer(f"vllm {TYPE}", "vllm_cpu", "folder", ("int8", "bf16"), ROOT / ".bench" / "vllm"),
    Peer(f"transformers {TYPE}", "hugging", "folder", ("int8", "bf16")),
)


class Engine:
    """A process that has a model. What it prints goes to a log."""

    def __init__(self, python: Path, module: str, model: Path, format: str, threads: int, size: int) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        self.log = LOGS / f"{module}.log"
        command = [python, "-m", f"benchmarks.peers.{module}", model, format, threads, size]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env=os.environ | HUGE_PAGES | {"OMP_NUM_THREADS": str(threads)}, cwd=ROOT,
            )  # fmt: skip
        self.megabytes = 0.0
        self._read()

    def rate(self, case: Case) -> float:
        """Tokens per second."""
        asked = {"batch": case.batch, "prompt": case.prompt, "answer": case.answer}
        seconds = 0.0
        for _ in range(case.turns):
            self._pipe(self._process.stdin).write(json.dumps(asked).encode() + b"\n")
            self._pipe(self._process.stdin).flush()
            said = self._read()
            seconds += said["seconds"]
            self.megabytes = said["megabytes"]
        return case.tokens / seconds

    def _read(self) -> dict[str, float]:
        """Raises RuntimeError where the process has ended."""
        line = self._pipe(self._process.stdout).readline()
        if not line:
            last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            raise RuntimeError(f"ended with {self._process.wait()}: {' '.join(last)[:200]}; see {self.log}")
        said: dict[str, float] = json.loads(line)
        return said

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe

    def close(self) -> None:
        self._pipe(self._process.stdin).close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def started(python: Path, module: str, model: Path, format: str, threads: int, size: int) -> Iterator[Engine]:
    engine = Engine(python, module, model, format, threads, size)
    try:
        yield engine
    finally:
        engine.close()


@dataclass(slots=True)
class Against:
    """What was measured of one case against one peer."""

    peer: str
    pairs: list[tuple[float, float]] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return median(ours / theirs for ours, theirs in self.pairs)

    def share(self, bytes: float) -> float:
        """Of the memory's speed, what ours took that reads so many bytes for each token."""
        pairs = zip(self.pairs, self.probes, strict=True)
        return median(ours * bytes / (probe * 1e9) for (ours, _), probe in pairs)


class Probe:
    """How fast all cores together read memory."""

    def __init__(self) -> None:
        self._block = torch.ones(PROBE // 8, dtype=torch.int64)

    def gigabytes_per_second(self) -> float:
        return max(self._once() for _ in range(3))

    def _once(self) -> float:
        began = time.perf_counter()
        self._block.sum()
        return PROBE / (time.perf_counter() - began) / 1e9


@dataclass(slots=True)
class Bench:
    options: argparse.Namespace
    rounds: int
    cases: tuple[Case, ...]
    probe: Probe = field(default_factory=Probe)

    def rows(self, model: str, format: str) -> list[Row]:
        folder = CATALOGUE[MODELS[model]].folder
        checkpoint = open_checkpoint(folder)
        size = int(checkpoint.config["vocab_size"])
        found: dict[str, list[Against]] = {case.name: [] for case in self.cases}
        memory: dict[str, float] = {}
        with started(Path(sys.executable), "ours", folder, format, self.options.threads, size) as ours:
            for peer in PEERS:
                if format in peer.formats:
                    self._beside(ours, peer, folder, format, size, found, memory)
            memory["peak MB of ours"] = round(ours.megabytes)
        further = {self.cases[-1].name: memory}
        if alone := found.get("b1"):
            share = alone[0].share(WEIGHT[format] * weights_of(checkpoint))
            further["b1"] = {"share of the read bandwidth": round(share, 2)} | further.get("b1", {})
        return [
            _row(f"{model} {format} {name}", each, further.get(name, {}))
            for name, each in found.items() if each
        ]  # fmt: skip

    def _beside(
        self, ours: Engine, peer: Peer, folder: Path, format: str, size: int,
        found: dict[str, list[Against]], memory: dict[str, float],
    ) -> None:  # fmt: skip
        if not peer.installed:
            print(f"{peer.name} is left out: make bench-peers makes it")
            return
        name = f"{peer.name} {GGUF[format]}" if peer.file == "gguf" else peer.name
        model = gguf_file(folder, GGUF[format]) if peer.file == "gguf" else hugging_face(folder)
        try:
            with started(peer.python, peer.module, model, format, self.options.threads, size) as theirs:
                for case in self.cases:
                    found[case.name].append(self._turns(case, ours, theirs, name))
                memory[f"peak MB of {name}"] = round(theirs.megabytes)
        except RuntimeError as error:
            print(f"{name} is left out: {error}")

    def _turns(self, case: Case, ours: Engine, theirs: Engine, name: str) -> Against:
        against = Against(name)
        warm = case.quick()
        for engine in (ours, theirs):
            engine.rate(warm)
        for _ in range(self.rounds):
            against.probes.append(self.probe.gigabytes_per_second())
            against.pairs.append((ours.rate(case), theirs.rate(case)))
        print(f"{case.name} against {name}: {against.ratio:.2f}", flush=True)
        return against


def _row(case: str, found: list[Against], further: dict[str, float]) -> Row:
    best, *others = sorted(found, key=lambda against: against.ratio)
    probes = [probe for against in found for probe in against.probes]
    ratios = {f"against {other.peer}": round(other.ratio, 2) for other in others}
    details = {"read GB/s": round(median(probes), 1), **ratios, **further}
    return paired(case, best.pairs, peer_name=best.peer, unit="tokens/s", details=details)


def weights_of(checkpoint: Checkpoint) -> int:
    """How many weights a token goes through: those of all linears."""
    names = [name for name in checkpoint.names() if len(checkpoint.stored(name).shape) == 2]
    looked_up = {EMBEDDING} if HEAD in names else set()
    return sum(math.prod(checkpoint.stored(name).shape) for name in set(names) - looked_up)


def parse() -> argparse.Namespace:
    parser = arguments(__doc__ or "", threads=len(os.sched_getaffinity(0)))
    names = [case.name for case in CASES]
    for option, known in (("--models", MODELS), ("--formats", FORMATS), ("--cases", names)):
        parser.add_argument(
            option, type=listed(known), default=list(known), metavar="NAME,…",
            help=f"of {', '.join(known)}; all unless told",
        )  # fmt: skip
    parser.add_argument(
        "--rounds", type=positive, help="how often each case is measured; 5, and 2 with --quick"
    )
    return parser.parse_args()


def main() -> None:
    options = parse()
    as_engines_are_started("benchmarks.engine_peers")  # what is probed, too, lies on pages as weights do
    models, formats = options.models, options.formats
    if options.quick:
        models, formats = models[:1], formats[:1]
    cases = tuple(case for case in CASES if case.name in options.cases)
    if options.quick:
        cases = tuple(case.quick() for case in cases)
    bench, rows = Bench(options, options.rounds or (2 if options.quick else 5), cases), list[Row]()
    for model in models:
        if not CATALOGUE[MODELS[model]].present:
            print(f"{model} is left out: headrace models pull {MODELS[model]}")
            continue
        for format in formats:
            print(f"{model} {format}", flush=True)
            rows += bench.rows(model, format)
    publish(Report(name="engine_peers", machine=machine(), rows=rows), options.json)


if __name__ == "__main__":
    main()
