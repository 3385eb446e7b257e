"""What a step that generates is made of: products of matrices, attention, and what lies between.

A step of the engine (its bookkeeping, one token for each sequence, sampling) takes turns with its products alone, each
linear once for as many rows, and with its attention alone, each layer once over as many tokens. What neither of them
took is between: norms, activations, sampling, bookkeeping, Python. It is put beside what it may be at most of a step, a
fifth at batch 1 and a tenth at batch 32.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from backends.engine.engine import Engine
from backends.engine.runner import ModelRunner, load_model
from backends.kernels import between
from backends.kernels.layout import Span
from backends.kernels.reference import Kernels
from backends.kernels.select import kernels_for
from backends.kernels.sides import array
from backends.layers.linear import Linear
from backends.models.decoder import Decoder
from backends.wire import Band, EngineConfig, Sampling, Submit
from benchmarks.engine_options import check_engine, model_folder, told
from benchmarks.report import Report, Row, arguments, listed, machine, paired, publish

MODEL = "smollm2-135m-instruct"
QUANTIZATIONS = ("none", "auto", "int8", "int4", "bf16", "fp32")  # that differ on a CPU
LIMITS = {1: 0.2, 8: 0.15, 32: 0.1}  # by batch
PROMPT, ROUNDS, BLOCK = 128, 96, 16
WARM_UP = 8  # rounds
PER_ROW = -(-(PROMPT + ROUNDS + WARM_UP) // BLOCK) + 1  # blocks


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds."""

    step: float
    products: float
    attention: float

    @property
    def between(self) -> float:
        """Of the step."""
        return max(0.0, 1 - (self.products + self.attention) / self.step)


class Bench:
    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        loaded = load_model(self.config)
        self.model: Decoder = loaded.model
        self.length = loaded.length
        self.runner = ModelRunner(loaded.model, self.config, self._make)
        self.runner.warm_up()

    def _make(self, *arguments: object) -> Kernels:
        self.kernels = kernels_for(*arguments)  # type: ignore[arg-type]
        return self.kernels

    def rounds(self, batch: int, count: int) -> Iterator[Parts]:
        size = self.model.vocab_size
        engine = Engine(self.config, self.runner, [b"x"] * size, frozenset(), size, self.length)
        sampling = Sampling(max_tokens=count + WARM_UP + 2, temperature=0.0, ignore_eos=True)
        for row in range(batch):
            prompt = torch.randint(1000, size, (PROMPT,)).tolist()
            if (
                refused := engine.submit(b"", Submit(id=str(row), prompt=prompt, sampling=sampling))
            ) is not None:
                raise RuntimeError(refused.message)
        while sum(len(output.ids) for _, output in engine.step()) < batch:
            pass
        linears = self._linears(batch)
        for round in range(WARM_UP + count):
            step = _seconds(engine.step)
            products = _seconds(lambda: self._products(linears))
            attention = _seconds(lambda at=PROMPT + round: self._attention(batch, at))  # type: ignore[misc]
            if round >= WARM_UP:
                yield Parts(step, products, attention)

    def _linears(self, batch: int) -> list[Callable[[], object]]:
        config = self.model.config
        mixed = config.heads * config.head_dim
        wide = {columns: torch.randn(batch, columns) for columns in (config.width, mixed, config.mlp_width)}
        inputs = {columns: x.to(self.model.embedding.dtype) for columns, x in wide.items()}
        each = [
            _product(linear, inputs[columns])
            for block in self.model.blocks
            for linear, columns in (
                (block.qkv, config.width), (block.output, mixed),
                (block.gate_up, config.width), (block.down, config.mlp_width),
            )
        ]  # fmt: skip
        return [*each, _product(self.model.head, inputs[config.width])]

    @staticmethod
    def _products(products: list[Callable[[], object]]) -> None:
        for multiply in products:
            multiply()

    def _attention(self, batch: int, position: int) -> None:
        """It writes where the engine's sequences lie, whose answers nobody reads."""
        config = self.model.config
        tables = [list(range(row * PER_ROW, (row + 1) * PER_ROW)) for row in range(batch)]
        layout = self.runner.layout([Span(position, 1, table, 0) for table in tables])
        width = (config.heads + 2 * config.kv_heads) * config.head_dim
        qkv = torch.zeros(batch, width, dtype=self.model.embedding.dtype)
        for layer in range(config.layers):
            self.kernels.attention(layer, qkv, layout)


def config_of(model: str, quantization: str, threads: int) -> EngineConfig:
    most = max(LIMITS)
    return EngineConfig(
        name="bench", model=model, socket="", vocabulary="", cores=threads,
        **told(quantization), kv_cache="bf16", kv_blocks=most * PER_ROW,
        interactive_sequences=most, bands=(Band(rows=most, ttft_ms=1000),), step_budget_ms=1000,
    )  # fmt: skip


def _product(linear: Linear, x: torch.Tensor) -> Callable[[], object]:
    """The product as a step has it, where loops multiply: without what lies around it in Python."""
    arrays = getattr(linear, "arrays", None)
    if arrays is None:
        return partial(linear, x)
    out = x.new_empty(len(x), len(arrays[-1]))
    return partial(between.product, array(x), arrays, array(out))


def _seconds(work: Callable[[], object]) -> float:
    with torch.inference_mode():
        started = time.perf_counter()
        work()
        return time.perf_counter() - started


def row(case: str, parts: list[Parts], limit: float) -> Row:
    """Ours is the share of what lies between."""
    details = {
        "step ms": round(median(each.step for each in parts) * 1e3, 2),
        "products": round(median(each.products / each.step for each in parts), 3),
        "attention": round(median(each.attention / each.step for each in parts), 3),
    }
    pairs = [(max(each.between, 0.001), limit) for each in parts]
    return paired(case, pairs, peer_name="at most", unit="of a step", higher_is_better=False, details=details)


def main() -> None:
    parser = arguments(__doc__ or "", threads=2)
    parser.add_argument(
        "--model",
        default=MODEL,
        help="a name of the catalogue, a folder or a .gguf file; %(default)s unless told",
    )
    parser.add_argument(
        "--quantization", type=listed(QUANTIZATIONS), default=["int8", "int4"], metavar="NAME,…",
        help=f"of the weights, one or several of {', '.join(QUANTIZATIONS)}; int8,int4 unless told",
    )  # fmt: skip
    options = parser.parse_args()
    folder = model_folder(parser, options.model, "--model")
    configs = {name: config_of(str(folder), name, options.threads) for name in options.quantization}
    for config in configs.values():
        check_engine(parser, config)
    torch.set_num_threads(options.threads)
    count = ROUNDS // 4 if options.quick else ROUNDS
    rows = []
    for quantization, config in configs.items():
        bench = Bench(config)
        rows += [
            row(f"between, {quantization} b{batch}", list(bench.rounds(batch, count)), limit)
            for batch, limit in LIMITS.items()
        ]
    publish(Report(name="step", machine=machine(), rows=rows), options.json)


if __name__ == "__main__":
    main()
