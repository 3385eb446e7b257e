"""What it costs to tell how sure a model is: signals of 32 rows against plain torch, and as a share of a decode step.

The second case runs the engine's own runner on a model with a vocabulary of 152,000 tokens: steps of 32 rows with
signals against steps without. Its ratio is what is left of the speed.
"""

import time
from pathlib import Path

import torch

from backends.engine.batch import Batch, Row
from backends.engine.runner import ModelRunner, load_runner
from backends.kernels.cpu import Cpu
from backends.kernels.reference import Kernels
from backends.wire import EngineConfig, Sampling
from benchmarks.engine_options import model_folder
from benchmarks.report import Report, arguments, machine, paired, publish

MODEL = "qwen2.5-coder-0.5b-instruct"
ROWS, VOCABULARY, CONTEXT, BLOCK = 32, 151_936, 128, 16
BARE = object.__new__(Cpu)  # for signals no kernels need a cache


def kernel(kind: type[Kernels], logits: torch.Tensor) -> float:
    """Milliseconds."""
    rows = torch.arange(ROWS)
    started = time.perf_counter()
    kind.signals(BARE, logits, rows, rows)
    return (time.perf_counter() - started) * 1e3


def step(runner: ModelRunner, watched: bool) -> float:
    """Milliseconds of one step of ROWS rows after CONTEXT tokens each."""
    width = CONTEXT // BLOCK + 1
    sampling = Sampling(max_tokens=1, temperature=0.0)
    rows = [
        Row([row], CONTEXT, list(range(row * width, (row + 1) * width)), sampling, watched=watched)
        for row in range(ROWS)
    ]
    started = time.perf_counter()
    pending = runner.launch(Batch(rows))
    runner.collect(pending)
    runner.signals(pending)
    return (time.perf_counter() - started) * 1e3


def decoder(folder: Path) -> ModelRunner:
    config = EngineConfig(
        name="signals",
        model=str(folder),
        socket="",
        vocabulary="",
        dtype="bfloat16",
        block_size=BLOCK,
        kv_blocks=ROWS * (CONTEXT // BLOCK + 1),
    )
    return load_runner(config)[0]


def main() -> None:
    parser = arguments(__doc__ or "", threads=2)
    options = parser.parse_args()
    folder = model_folder(parser, MODEL)
    torch.set_num_threads(options.threads)
    rounds = 5 if options.quick else 40
    rows = []
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        logits = (torch.randn(ROWS, VOCABULARY) * 3).to(dtype)
        kernel(Cpu, logits)  # compiles it
        pairs = [(kernel(Cpu, logits), kernel(Kernels, logits)) for _ in range(rounds)]
        case = f"signals of {ROWS} rows, {name}"
        rows.append(paired(case, pairs, peer_name="torch", unit="ms", higher_is_better=False))
    runner = decoder(folder)
    step(runner, True)
    pairs = [(step(runner, True), step(runner, False)) for _ in range(rounds)]
    share = sum(ours - peer for ours, peer in pairs) / sum(ours for ours, _ in pairs)
    rows.append(
        paired(
            f"a step of {ROWS} rows with signals",
            pairs,
            peer_name="without",
            unit="ms",
            higher_is_better=False,
            details={"share of the step": f"{share:.1%}"},
        )
    )
    publish(Report(name="signals", machine=machine(), rows=rows), options.json)


if __name__ == "__main__":
    main()
