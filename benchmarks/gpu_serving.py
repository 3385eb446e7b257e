"""Serves a model through the engine on a GPU, and holds its speed to the bandwidth of the memory.

One process for each model: `python -m benchmarks.gpu_serving MODEL`, with a model of the catalogue, a folder, or
`random-7b` for weights that nobody trained, of the shape of a 7B model.
"""

import argparse
import dataclasses
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Protocol, cast

import msgspec
import torch

from backends.catalogue import resolve
from backends.engine.engine import Engine
from backends.engine.graphs import capture_on
from backends.engine.runner import ModelRunner
from backends.kernels.reference import Kernels
from backends.kernels.select import kernels_for
from backends.models.checkpoint import open_checkpoint
from backends.models.decoder import Decoder
from backends.models.loader import load_decoder
from backends.models.registry import decoder_config
from backends.quantization.packed import Packed
from backends.wire import Band, EngineConfig, Quantization, Sampling, Submit
from benchmarks.gpu_kernels.__main__ import failed, keep, limits_of, setting_of
from benchmarks.gpu_kernels.case import Setting
from benchmarks.gpu_kernels.clock import Clock
from benchmarks.gpu_kernels.random_model import SHAPES, random_decoder
from benchmarks.report import Row, paired

PROMPT = 32
CHECKED = 24  # tokens that have to be those of a CPU
MANY = 32  # sequences at once
QUANTIZATIONS: tuple[Quantization, ...] = ("none", "int8", "int4", "w8a8", "fp8")


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """A model, and how it is loaded for a device."""

    name: str
    load: Callable[[torch.dtype, torch.device, Quantization], Decoder]


def subject(name: str) -> Subject:
    """Raises ModelError for a model that is neither random nor there."""
    if name in SHAPES:
        return Subject(name, lambda *how: random_decoder(SHAPES[name], *how))
    checkpoint = open_checkpoint(resolve(name))
    shape = decoder_config(checkpoint.config)
    return Subject(
        name, lambda dtype, device, kept: load_decoder(checkpoint, shape, dtype, device, quantization=kept)
    )


class Server:
    """A model in an engine of its own in this process."""

    def __init__(
        self, model: Decoder, sequences: int, answer: int, *, recorded: bool = True, tiny: bool = False
    ) -> None:
        """`recorded`: decode steps are graphs, where the device has such. `tiny`: not worth compiling kernels for."""
        self.model, self.answer = model, answer
        device = model.embedding.device
        self.config = EngineConfig(
            name="bench", model="", socket="", vocabulary="", device=str(device),
            kv_blocks=(sequences + 1) * -(-(PROMPT + answer) // 16) + 1, max_sequences=sequences,
            interactive_sequences=sequences, bands=(Band(rows=sequences, ttft_ms=1000),), step_budget_ms=1000,
        )  # fmt: skip
        capture = capture_on(device) if recorded else None
        self.runner = ModelRunner(model, self.config, Kernels if tiny else kernels_for, capture)
        self.runner.warm_up()

    def run(self, sequences: int) -> tuple[list[list[int]], float]:
        """The greedy answers to as many prompts, and tokens per second."""
        vocabulary = self.model.vocab_size
        length = self.config.kv_blocks * self.config.block_size
        engine = Engine(self.config, self.runner, [b"x"] * vocabulary, frozenset(), vocabulary, length)
        draw = torch.Generator().manual_seed(1)
        for number in range(sequences):
            prompt = torch.randint(vocabulary, (PROMPT,), generator=draw).tolist()
            sampling = Sampling(max_tokens=self.answer, temperature=0.0, ignore_eos=True)
            refused = engine.submit(b"", Submit(id=str(number), prompt=prompt, sampling=sampling))
            if refused is not None:
                raise RuntimeError(refused.message)
        answers: dict[str, list[int]] = {}
        started = time.perf_counter()
        while engine.has_work:
            for _, output in engine.step():
                answers.setdefault(output.id, []).extend(output.ids)
        seconds = time.perf_counter() - started
        found = [answers[str(number)] for number in range(sequences)]
        return found, sum(map(len, found)) / seconds


class Weighted(Protocol):
    """A linear layer, whole or quantised."""

    @property
    def weight(self) -> torch.Tensor | Packed: ...


def weight_bytes(model: Decoder) -> int:
    """What a step reads of the weights; of the embedding it reads next to nothing."""
    linears = [
        each for block in model.blocks for each in (block.qkv, block.output, block.gate_up, block.down)
    ]
    return sum(cast(Weighted, each).weight.nbytes for each in [*linears, model.head])


class Serving:
    """All rows of one model."""

    def __init__(self, subject: Subject, setting: Setting) -> None:
        self._subject, self._setting = subject, setting
        self._limits = limits_of(setting, Clock(setting.device))
        self._answer = 4 if setting.tiny else 64 if setting.quick else 256
        self._runs = 1 if setting.tiny else 3

    def rows(self) -> Iterator[Row]:
        if self._setting.tiny or self._subject.name not in SHAPES:
            yield self._row("tokens of a CPU", self._same_tokens)
        yield self._row("decoding by graphs", self._graphs)
        for quantization in QUANTIZATIONS if self._setting.device.type == "cuda" else QUANTIZATIONS[:1]:
            yield self._row(f"quantization {quantization}", partial(self._alone, quantization))
        yield self._row(f"{MANY} sequences", self._many)

    def _row(self, what: str, measure: Callable[[], Row]) -> Row:
        """What fails is a row that says so."""
        name = f"{self._subject.name}: {what}"
        try:
            return msgspec.structs.replace(measure(), case=name)
        except Exception as problem:
            traceback.print_exc()
            return failed(name, "FAILED", f"{type(problem).__name__}: {problem}")
        finally:
            if self._setting.device.type == "cuda":
                torch.cuda.empty_cache()

    def _same_tokens(self) -> Row:
        """In float32, where two devices agree but for near-ties. A model of a few billion weights takes its time. Large
        random weights are drawn on the device, other ones than on a CPU, and are not compared."""
        answers = []
        for device in (self._setting.device, torch.device("cpu")):
            model = self._subject.load(torch.float32, device, "none")
            answers.append(self._server(model, 1, CHECKED).run(1)[0][0])
        same = next((at for at, pair in enumerate(zip(*answers, strict=True)) if pair[0] != pair[1]), CHECKED)
        return Row(
            case="", ours=same, peer=CHECKED, peer_name="greedy on a CPU", unit="tokens", ratio=same / CHECKED
        )

    def _graphs(self) -> Row:
        model = self._load("none")
        recorded, eager = (self._server(model, 1, self._answer, recorded=each) for each in (True, False))
        pairs = [(recorded.run(1)[1], eager.run(1)[1]) for _ in range(self._runs)]
        return paired("", pairs, peer_name="eager", unit="tokens/s")

    def _alone(self, quantization: Quantization) -> Row:
        model = self._load(quantization)
        return self._against_bandwidth(model, 1)

    def _many(self) -> Row:
        return self._against_bandwidth(self._load("none"), MANY)

    def _server(self, model: Decoder, sequences: int, answer: int, *, recorded: bool = True) -> Server:
        return Server(model, sequences, answer, recorded=recorded, tiny=self._setting.tiny)

    def _load(self, quantization: Quantization) -> Decoder:
        return self._subject.load(self._setting.dtype, self._setting.device, quantization)

    def _against_bandwidth(self, model: Decoder, sequences: int) -> Row:
        """A step cannot be done before the weights are read, and the keys and values of all sequences."""
        server = self._server(model, sequences, self._answer)
        server.run(sequences)  # compiles what the warm-up did not meet
        rates = [server.run(sequences)[1] for _ in range(self._runs)]
        shape, context = model.config, PROMPT + self._answer / 2
        per_token = 2 * shape.layers * shape.kv_heads * shape.head_dim * model.embedding.dtype.itemsize
        read = weight_bytes(model) + sequences * context * per_token
        most = sequences * self._limits.bandwidth / read
        return Row(
            case="", ours=median(rates), peer=most, peer_name=f"bandwidth, {self._limits.source}",
            unit="tokens/s", ratio=median(rates) / most, details={"weights": f"{weight_bytes(model) / 1e9:.3g} GB"},
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=Path, required=True)
    options = parser.parse_args()
    if options.tiny:
        torch.set_num_threads(1)
    setting = setting_of(torch.device(options.device), tiny=options.tiny, quick=options.quick)
    keep(Serving(subject(options.model), setting).rows(), options.rows)


if __name__ == "__main__":
    main()
