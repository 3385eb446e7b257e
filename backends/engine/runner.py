"""Runs batches of a decoder on its device, and sets one up from what an engine is started with."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from backends.engine.adjustments import adjust
from backends.engine.batch import Batch, Pick, Row
from backends.engine.graphs import Capture, DecodeGraphs, capture_on
from backends.engine.overlap import Follow
from backends.engine.sampler import sample
from backends.engine.scores import Measured, Scoring
from backends.engine.signals import Watched, watch
from backends.instructions import auto_dtype
from backends.kernels.kv_formats import cache_dtype, name_of
from backends.kernels.layout import KVCache, Layout, Span
from backends.kernels.reference import Kernels
from backends.kernels.select import kernels_for
from backends.kernels.tiling import TILE_ROWS
from backends.kernels.transfer import Download, upload
from backends.layers.parallel import Ranks
from backends.layers.shard import ALONE, Shard
from backends.models.checkpoint import Checkpoint, open_checkpoint
from backends.models.config import DecoderConfig
from backends.models.decoder import Decoder, kernels_of
from backends.models.formats import possible
from backends.models.loader import load_decoder
from backends.models.registry import decoder_config
from backends.models.sharding import divided
from backends.resident import give_back
from backends.wire import EngineConfig, Quantization, Sampling, Score, Signal

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pending:
    """A step under way: sampled ids of the batch's picks, on the device and on their way from it, scores and signals
    where rows ask."""

    batch: Batch
    ids: torch.Tensor
    arriving: Download
    picks: list[Pick]
    scoring: Scoring | None
    measured: Measured | None
    watched: Watched | None


class ModelRunner:
    """A decoder with the KV cache that EngineConfig asks for. Implements `batch.Runner`."""

    def __init__(
        self,
        model: Decoder,
        config: EngineConfig,
        make: Callable[..., Kernels] = kernels_for,
        capture: Capture | None = None,
    ) -> None:
        """`make` the kernels, see `kernels_of`; `capture`: how decode steps are recorded, where they are."""
        self._model = model
        self._device = model.embedding.device
        shape = model.config
        self._cache = KVCache(
            shape.layers,
            config.kv_blocks,
            config.block_size,
            shape.kv_heads,
            shape.head_dim,
            dtype=cache_dtype(config.kv_cache, model.embedding.dtype, self._device.type),
            device=self._device,
        )
        kept = name_of(self._cache.keys.dtype)
        _log.info("%s keeps keys and values in %s: %.1f MB", config.name, kept, self._cache.bytes / 1e6)
        self._positions = min(shape.max_positions, config.kv_blocks * config.block_size)
        self._kernels = kernels_of(shape, self._cache, self._positions, make)
        self._capture, self._most_rows, self._most_tokens = capture, config.max_sequences, config.token_budget
        self._graphs: DecodeGraphs | None = None
        self.border = shape.rope.border  # sequences beyond it have to be `Row.stretched`

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return self._model.embedding.dtype

    def launch(self, batch: Batch) -> Pending:
        """Queue one forward pass over all rows, and the sampling of those that want tokens.

        Raises ValueError for a row beyond its blocks or the model's positions.
        """
        ids = [token for row in batch.rows for token in row.tokens]
        return self._launch(batch, upload(ids, self._device, np.int64))

    @property
    def overlap(self) -> Follow | None:
        """How a step follows one under way, where the device works by itself, see `overlap`."""
        return None if self._device.type == "cpu" else self.follow

    def follow(self, batch: Batch, follows: list[int], pending: Pending) -> Pending:
        """As `overlap.Follow`; `pending` samples one token for each row."""
        picks = {pick.row: place for place, pick in enumerate(pending.picks)}
        at = upload([picks[row] for row in follows], self._device, np.int64)
        return self._launch(batch, pending.ids.index_select(0, at))

    def _launch(self, batch: Batch, ids: torch.Tensor) -> Pending:
        spans = [
            Span(row.start, len(row.tokens), row.blocks, self._positions if row.stretched else 0)
            for row in batch.rows
        ]
        layout = self.layout(spans)
        picks = batch.picks
        reads = np.array([layout.firsts[pick.row] + pick.after for pick in picks], np.int64)
        scoring = Scoring(batch, layout) if batch.scored else None
        if scoring is not None:
            reads = np.concatenate([reads, scoring.reads])
        with torch.inference_mode():
            logits = self.forward(ids, layout, reads)
            own = adjust(logits[: len(picks)], picks)
            positions = [spans[pick.row].start + pick.after + 1 for pick in picks]
            sampled = sample(own, [pick.sampling for pick in picks], positions, self._kernels)
            measured = None if scoring is None else scoring.measure(logits, sampled)
            watched = watch(batch, logits, sampled, self._kernels) if batch.watched else None
        return Pending(batch, sampled, Download(sampled), picks, scoring, measured, watched)

    def layout(self, spans: Sequence[Span]) -> Layout:
        """Where tokens lie. Raises ValueError as `launch`."""
        layout = Layout(spans, self._cache)
        if layout.positions.max() >= self._positions:
            raise ValueError(f"position {layout.positions.max()}: there are only {self._positions}")
        return layout

    def forward(self, ids: torch.Tensor, layout: Layout, reads: NDArray[np.int64]) -> torch.Tensor:
        """Logits [reads, vocabulary] of the tokens `reads` of `ids` int64 [tokens], which lie as `layout` says; by a
        graph where one fits."""
        wanted = layout.tensor(reads)
        recorded = None if self._graphs is None else self._graphs.run(ids, layout)
        if recorded is not None:
            return recorded.index_select(0, wanted)
        return self._model.forward(ids, layout, wanted, self._kernels)

    def collect(self, pending: Pending) -> list[list[int]]:
        """Wait for a step. The sampled ids of each row, none for rows without sampling."""
        tokens: list[list[int]] = [[] for _ in pending.batch.rows]
        for pick, token in zip(pending.picks, pending.arriving.wait().tolist(), strict=True):
            tokens[pick.row].append(token)
        return tokens

    def scores(self, pending: Pending) -> list[list[Score]]:
        """As `batch.Runner`."""
        if pending.scoring is None or pending.measured is None:
            return [[] for _ in pending.batch.rows]
        return pending.scoring.by_row(pending.measured)

    def signals(self, pending: Pending) -> list[list[Signal]]:
        """As `batch.Runner`."""
        watched = pending.watched
        return [[] for _ in pending.batch.rows] if watched is None else watched.by_row(pending.batch)

    def set_threads(self, threads: int) -> None:
        """How many CPU threads the next steps use; the kernels of `backends.kernels.cpu` follow torch."""
        torch.set_num_threads(threads)

    def warm_up(self) -> None:
        """Compile what is compiled on first use. Only before the first real batch: it writes to the cache."""
        sampling = Sampling(max_tokens=1, temperature=1.0, top_p=0.5)
        works_alone = self._device.type != "cpu"
        kinds = {*self._kernels.kinds, *((*TILE_ROWS, self._most_tokens) if works_alone else ())}
        for count in sorted({min(count, self._positions) for count in kinds}):
            blocks = list(range(-(-count // self._cache.block_size)))
            self.collect(self.launch(Batch([Row([0] * count, 0, blocks, sampling, watched=True)])))
        if works_alone and self._capture is None:  # else the graphs compile the head for more rows than one
            for rows in sorted({min(rows, self._most_rows) for rows in TILE_ROWS}):
                self.collect(self.launch(Batch([Row([0], 0, [0], sampling)] * rows)))
        if self._capture is not None:
            self._graphs = DecodeGraphs(
                self._model, self._kernels, self._cache, self._positions, self._most_rows, self._capture
            )
        give_back()  # the compiler, and the file of the weights


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, its end-of-text ids, and the most tokens of a sequence."""

    model: Decoder
    eos: frozenset[int]
    length: int


def load_runner(
    config: EngineConfig, vocab_size: int | None = None
) -> tuple[ModelRunner, frozenset[int], int, int]:
    """The runner of `config.model`, its end-of-text ids, its vocabulary size and the most tokens of a sequence.

    Arguments and errors as `load_model`.
    """
    loaded = load_model(config, vocab_size)
    runner = ModelRunner(loaded.model, config, capture=capture_on(loaded.model.embedding.device))
    runner.warm_up()
    return runner, loaded.eos, loaded.model.vocab_size, loaded.length


def load_model(config: EngineConfig, vocab_size: int | None = None, ranks: Ranks | None = None) -> Loaded:
    """The model of `config`, or what one of several ranks has of it.

    `vocab_size`: the tokenizer's, where it is known; ids beyond it, which only pad the weights, are never sampled.
    Raises CheckpointError for files that cannot be read, ValueError naming the field or tensor that does not fit.
    """
    shard = ALONE if ranks is None else ranks.shard
    if shard.ranks != config.tensor_parallel:
        raise ValueError(f"tensor_parallel: {config.tensor_parallel} asked for, {shard.ranks} here")
    model = describe(config, shard)
    dtype, reason = model.dtype
    _log.info("%s computes in %s: %s", config.name, str(dtype).removeprefix("torch."), reason)
    decoder = load_decoder(
        model.checkpoint, model.shape, dtype, model.device, vocab_size, model.quantization, ranks
    )
    return Loaded(decoder, eos_ids(model.checkpoint.generation, model.checkpoint.config), model.length)


@dataclass(frozen=True, slots=True)
class Described:
    """All that is known of a model before its weights are read. `dtype` with the reason, in words."""

    checkpoint: Checkpoint
    shape: DecoderConfig
    length: int
    device: torch.device
    quantization: Quantization
    dtype: tuple[torch.dtype, str]


def describe(config: EngineConfig, shard: Shard = ALONE) -> Described:
    """Raises as `load_model`, but for what is wrong with tensors."""
    checkpoint = open_checkpoint(Path(config.model))
    shape = decoder_config(checkpoint.config)
    divided(shape, shard.ranks)
    device = device_of(config.device, shard)
    return Described(
        checkpoint,
        shape,
        model_length(config, shape.max_positions),
        device,
        possible(config.quantization, device.type),
        dtype_for(config.dtype, device),
    )


def device_of(name: str, shard: Shard) -> torch.device:
    """The one that `name` says, or each rank's own GPU. Raises ValueError as `ready`, and where GPUs are too few."""
    if shard.ranks == 1 or name == "cpu":
        return ready(name)
    if name != "cuda":
        raise ValueError(
            f"device: {name} is one GPU, and each of {shard.ranks} ranks needs its own: say cuda"
        )
    count = torch.cuda.device_count()
    if count < shard.ranks:
        raise ValueError(f"tensor_parallel: {shard.ranks} ranks need a GPU each, and there are {count}")
    return ready(f"cuda:{shard.rank}")


def ready(name: str) -> torch.device:
    """The device, which becomes the one that kernels are launched on. Raises ValueError where there is no such GPU."""
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device: {name}: this torch, {torch.__version__}, finds no GPU")
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise ValueError(f"device: {name}: there are only {count} GPUs, from cuda:0 on")
        torch.cuda.set_device(device)
        # Sums of products that are shared out stay in float32 until they are complete.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    return device


def dtype_for(name: str, device: torch.device) -> tuple[torch.dtype, str]:
    """The type to compute in, and why, in words. Raises ValueError.

    `auto` is bfloat16 where the device has instructions for it; without them it is slower than float32.
    """
    if device.type == "cpu" and name == "float16":
        raise ValueError("dtype: float16 needs a GPU; the CPU kernels have float32 and bfloat16")
    if name != "auto":
        return getattr(torch, name), "as configured"
    dtype = getattr(torch, auto_dtype(device.type))
    if device.type != "cpu":
        return dtype, "auto, on a GPU"
    has = (
        "instructions for its products"
        if dtype == torch.bfloat16
        else "no instructions for those of bfloat16"
    )
    return dtype, f"auto, as this CPU has {has}"


def model_length(config: EngineConfig, max_positions: int) -> int:
    """The most tokens of one sequence: what is asked for or else the model's own, and no more than all blocks
    hold. Raises ValueError when more is asked for than the model was made for."""
    asked = config.max_model_len
    if asked is not None and asked > max_positions:
        raise ValueError(
            f"max_model_len: {asked} is beyond the model's max_position_embeddings, {max_positions}"
        )
    return min(asked or max_positions, config.kv_blocks * config.block_size)


def eos_ids(generation: Mapping[str, Any], config: Mapping[str, Any]) -> frozenset[int]:
    """The ids that end a text: generation_config.json's, or else config.json's. There may be several, or none."""
    ids = generation.get("eos_token_id", config.get("eos_token_id"))
    if ids is None:
        return frozenset()
    return frozenset(ids if isinstance(ids, list) else [ids])
