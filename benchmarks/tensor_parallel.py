"""One model on two threads: as two ranks of one thread each, and as one rank that has both.

The model has weights that nobody trained, written to a folder that the ranks read their parts from. Every round both
decode the same rows. What a rank hands to the others in a step is counted, and held to what the cuts ask for, see
`exchanged`. On CPUs the ranks talk through sockets, so this shows what that costs rather than what it brings.
"""

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file

from backends.engine.batch import Batch, Row
from backends.engine.parallel.group import Group, join_group
from backends.engine.parallel.leader import LeadingRunner, Workers
from backends.engine.process import thread_environment
from backends.engine.runner import ModelRunner, load_runner
from backends.layers.shard import Shard
from backends.models.config import DecoderConfig
from backends.models.registry import decoder_config
from backends.wire import EngineConfig, Quantization, Sampling
from benchmarks import report

RANKS = 2
CONFIG = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8192, "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
SEQUENCES = (1, 8)
STEPS = {False: 64, True: 8}  # by --quick
ROUNDS = {False: 15, True: 2}
GREEDY = Sampling(max_tokens=1, temperature=0.0)


@dataclass(slots=True)
class Counted:
    """A Group that counts the bytes that its rank hands to it. As `layers.parallel.Ranks`."""

    group: Group
    bytes: int = 0

    @property
    def shard(self) -> Shard:
        return self.group.shard

    def add(self, x: torch.Tensor) -> torch.Tensor:
        return self.group.add(self._count(x))

    def join(self, x: torch.Tensor) -> torch.Tensor:
        return self.group.join(self._count(x))

    def join_on_first(self, x: torch.Tensor) -> torch.Tensor:
        return self.group.join_on_first(self._count(x))

    def _count(self, x: torch.Tensor) -> torch.Tensor:
        self.bytes += x.nbytes
        return x


def exchanged(config: DecoderConfig, tokens: int, reads: int, each: int, *, integers: bool) -> int:
    """Bytes that a rank hands over in a step of `tokens`, `reads` of which get logits, as numbers of `each` bytes.

    Whole weights: the embedding, and in each layer what leads out of attention and out of the MLP, are added up, one
    row of the width each. Of integers these two are joined: the rank's part of the inputs, and of the outputs. The
    head: its part of the logits.
    """
    part = Shard(ranks=RANKS).size
    inner = (config.heads * config.head_dim, config.mlp_width)
    out = part(config.width) if integers else config.width
    layer = sum((part(inputs) if integers else 0) + out for inputs in inner)
    return each * (tokens * (config.width + config.layers * layer) + reads * part(config.vocab_size))


def write_model(folder: Path) -> None:
    """A Llama of `CONFIG` in the folder, about 140 MB."""
    config, random = decoder_config(CONFIG), torch.Generator().manual_seed(1)
    width, keys = config.width, config.kv_heads * config.head_dim
    shapes = {
        "self_attn.q_proj": (width, width), "self_attn.k_proj": (keys, width), "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, width), "mlp.gate_proj": (config.mlp_width, width),
        "mlp.up_proj": (config.mlp_width, width), "mlp.down_proj": (width, config.mlp_width),
    }  # fmt: skip
    tensors = {"model.embed_tokens.weight": torch.randn(config.vocab_size, width, generator=random)}
    tensors["model.norm.weight"] = torch.ones(width)
    for layer in range(config.layers):
        for name, shape in shapes.items():
            weight = torch.randn(shape, generator=random) / shape[1] ** 0.5
            tensors[f"model.layers.{layer}.{name}.weight"] = weight
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.ones(width)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))


def decode(runner: ModelRunner, sequences: int, steps: int) -> tuple[list[list[int]], float]:
    """The tokens of each sequence from one id on, and tokens per second."""
    runner.set_threads(RANKS)
    size = -(-(steps + 1) // 16)
    blocks = [list(range(row * size, (row + 1) * size)) for row in range(sequences)]
    ids = [[100 + row] for row in range(sequences)]
    started = time.perf_counter()
    for step in range(steps):
        rows = [Row(own[-1:], step, at, GREEDY) for own, at in zip(ids, blocks, strict=True)]
        for own, new in zip(ids, runner.collect(runner.launch(Batch(rows))), strict=True):
            own += new
    return ids, sequences * steps / (time.perf_counter() - started)


class Comparison:
    """Both, in one format."""

    def __init__(self, folder: Path, quantization: Quantization, steps: int) -> None:
        self._steps, self._quantization = steps, quantization
        config = EngineConfig(
            name="bench", model=str(folder / "model"), socket="", vocabulary="", dtype="float32",
            quantization=quantization, kv_blocks=max(SEQUENCES) * -(-(steps + 1) // 16),
        )  # fmt: skip
        self._alone, *_ = load_runner(config)
        self.workers = Workers(RANKS, folder / f"ranks-{quantization}", join=self._join)
        self._among: LeadingRunner
        self._among, _ = self.workers.load(msgspec.structs.replace(config, tensor_parallel=RANKS))

    def _join(self, shard: Shard, store: Path, device: torch.device) -> Counted:
        self._ranks = Counted(join_group(shard, store, device))
        return self._ranks

    def speed(self, sequences: int, rounds: int) -> report.Row:
        """Raises ValueError where integers, which are added up in no other order, give other tokens."""
        pairs = []
        for _ in range(rounds + 1):
            ours, rate = decode(self._among, sequences, self._steps)
            alone, peer = decode(self._alone, sequences, self._steps)
            if self._quantization != "none" and ours != alone:
                raise ValueError(f"{self._quantization}: two ranks say other tokens than one")
            pairs.append((rate, peer))
        case = f"{self._quantization}, {sequences} sequences"
        return report.paired(case, pairs[1:], peer_name="one rank of two threads", unit="tokens/s")

    def bytes(self, sequences: int) -> report.Row:
        """Of one step, counted and worked out."""
        before, told = self._ranks.bytes, self._among.told
        decode(self._among, sequences, self._steps)
        counted, told = (self._ranks.bytes - before) / self._steps, (self._among.told - told) // self._steps
        integers = self._quantization != "none"
        wanted = exchanged(decoder_config(CONFIG), sequences, sequences, 4, integers=integers)
        return report.Row(
            case=f"{self._quantization}, {sequences} sequences, exchanged in a step",
            ours=counted,
            peer=wanted,
            peer_name="what the cuts ask for",
            unit="bytes",
            ratio=wanted / counted,
            details={"orders": f"{told} bytes"},
        )


def main() -> None:
    options = report.arguments(__doc__ or "").parse_args()
    environment = {**os.environ, **thread_environment(RANKS)}
    if environment != dict(os.environ):  # libraries look at it when they are loaded
        os.execve(
            sys.executable, [sys.executable, "-m", "benchmarks.tensor_parallel", *sys.argv[1:]], environment
        )
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model").mkdir()
        write_model(folder / "model")
        for quantization in ("none", "int8"):
            comparison = Comparison(folder, quantization, STEPS[options.quick])
            try:
                for sequences in SEQUENCES:
                    rows += [comparison.speed(sequences, ROUNDS[options.quick]), comparison.bytes(sequences)]
            finally:
                comparison.workers.close()
    report.publish(report.Report(name="tensor_parallel", machine=report.machine(), rows=rows), options.json)


if __name__ == "__main__":
    main()
