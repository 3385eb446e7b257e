"""Formats of one model side by side: memory, speed of decoding and of a prompt, and perplexity.

Weights in float32, bfloat16, int8 and int4, with keys and values as is computed in, and weights in float32 with keys
and values in bfloat16, int8 and int4 run in this process in turns, against bfloat16. Speed is that of the model with
its head and cache, without sampling. Perplexity is that of a fixed text. `memory` is that of the weights, `kv` that of
a token.
"""

import ctypes
import math
import time
from pathlib import Path

import tokenizers
import torch

from backends.instructions import auto_dtype
from backends.kernels.kv_formats import cache_dtype
from backends.kernels.layout import KVCache, Layout, Span
from backends.models.checkpoint import open_checkpoint
from backends.models.decoder import Decoder, kernels_of
from backends.models.loader import load_decoder
from backends.models.registry import decoder_config
from backends.wire import EngineConfig, KVFormat, Quantization
from benchmarks.engine_options import check_engine, check_tokenizer, model_folder
from benchmarks.report import Report, Row, arguments, machine, paired, publish

MODEL = "smollm2-135m-instruct"
TEXT = Path(__file__).with_name("formats.txt")
CONTEXT, PROMPT, BLOCK = 128, 512, 16
BATCHES = (1, 8, 32)
SMALL = getattr(torch, auto_dtype("cpu"))  # in which the rest is computed beside small integers
FORMATS: dict[str, tuple[torch.dtype, Quantization, KVFormat]] = {
    "fp32": (torch.float32, "none", "auto"),
    "bf16": (torch.bfloat16, "none", "auto"),
    "int8": (SMALL, "int8", "auto"),
    "int4": (SMALL, "int4", "auto"),
    "fp32, kv bf16": (torch.float32, "none", "bf16"),
    "fp32, kv int8": (torch.float32, "none", "int8"),
    "fp32, kv int4": (torch.float32, "none", "int4"),
}
PEER = "bf16"
CPU = torch.device("cpu")


class Subject:
    """A model in one format, with a cache of its own."""

    def __init__(self, folder: Path, dtype: torch.dtype, format: Quantization, kv: KVFormat = "auto") -> None:
        before = resident()
        checkpoint = open_checkpoint(folder)
        config = decoder_config(checkpoint.config)
        self.model: Decoder = load_decoder(checkpoint, config, dtype, CPU, quantization=format)
        self.megabytes = (resident() - before) / 1e6
        self._per_row = -(-(CONTEXT + 1) // BLOCK)
        blocks = max(BATCHES) * self._per_row
        shape = (config.layers, blocks, BLOCK, config.kv_heads, config.head_dim)
        self._cache = KVCache(*shape, dtype=cache_dtype(kv, dtype, "cpu"), device=CPU)
        self.kv_bytes = self._cache.bytes / (blocks * BLOCK)
        self._kernels = kernels_of(config, self._cache, blocks * BLOCK)

    def logits(self, ids: list[int], spans: list[Span], wanted: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            layout = Layout(spans, self._cache)
            return self.model.forward(torch.tensor(ids), layout, torch.tensor(wanted), self._kernels)

    def decode(self, batch: int) -> float:
        """Tokens per second of one step with so many rows after CONTEXT tokens each."""
        tables = [list(range(row * self._per_row, (row + 1) * self._per_row)) for row in range(batch)]
        started = time.perf_counter()
        self.logits(list(range(batch)), [Span(CONTEXT, 1, table, 0) for table in tables], list(range(batch)))
        return batch / (time.perf_counter() - started)

    def prefill(self) -> float:
        """Tokens per second of one prompt."""
        ids = list(range(1000, 1000 + PROMPT))
        started = time.perf_counter()
        self.logits(ids, [Span(0, PROMPT, list(range(PROMPT // BLOCK)), 0)], [PROMPT - 1])
        return PROMPT / (time.perf_counter() - started)

    def perplexity(self, ids: list[int]) -> float:
        span = Span(0, len(ids), list(range(-(-len(ids) // BLOCK))), 0)
        logits = self.logits(ids, [span], list(range(len(ids)))).float()
        return math.exp(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])))


def resident() -> int:
    """Bytes of this process in memory, without files, and without what the allocator keeps for later."""
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


def measure(subjects: dict[str, Subject], case: str, rounds: int) -> dict[str, list[float]]:
    """Tokens per second of each format, in turns."""
    figures: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(rounds + 1):
        for name, subject in subjects.items():
            rate = subject.prefill() if case == "prefill" else subject.decode(int(case))
            if turn:  # the first compiles and fills caches
                figures[name].append(rate)
    return figures


def speed_rows(subjects: dict[str, Subject], rounds: int) -> list[Row]:
    rows = []
    for case in (*map(str, BATCHES), "prefill"):
        label = f"prefill {PROMPT}" if case == "prefill" else f"decode b{case}"
        figures = measure(subjects, case, rounds)
        for name in subjects:
            pairs = list(zip(figures[name], figures[PEER], strict=True))
            rows.append(paired(f"{name} {label}", pairs, peer_name=PEER, unit="tokens/s"))
    return rows


def still_rows(subjects: dict[str, Subject], ids: list[int]) -> list[Row]:
    """Memory and perplexity, which do not depend on the clock."""
    memory = {name: subject.megabytes for name, subject in subjects.items()}
    kept = {name: subject.kv_bytes for name, subject in subjects.items()}
    quality = {name: subject.perplexity(ids) for name, subject in subjects.items()}
    return [
        paired(
            f"{name} {case}",
            [(figures[name], figures[against])],
            peer_name=against,
            unit=unit,
            higher_is_better=False,
        )
        for case, figures, unit, against in (
            ("memory", memory, "MB", PEER),
            ("kv", kept, "bytes per token", PEER),
            ("perplexity", quality, "per token", "fp32"),
        )
        for name in subjects
    ]


def main() -> None:
    parser = arguments(__doc__ or "", threads=2)
    parser.add_argument(
        "--model", default=MODEL, help="a name of the catalogue or a folder; %(default)s unless told"
    )
    options = parser.parse_args()
    folder = model_folder(parser, options.model, "--model")
    check_engine(parser, EngineConfig(name="bench", model=str(folder), socket="", vocabulary=""))
    check_tokenizer(parser, folder, "--model")
    torch.set_num_threads(options.threads)
    ids = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT.read_text()).ids
    subjects = {name: Subject(folder, *how) for name, how in FORMATS.items()}
    rows = still_rows(subjects, ids) + speed_rows(subjects, 5 if options.quick else 15)
    publish(Report(name="formats", machine=machine(), rows=rows), options.json)


if __name__ == "__main__":
    main()
