"""A checkpoint's tensors into a decoder, one layer at a time, so that no two copies of a model exist.

A rank reads its own part of each tensor and nothing else.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch

from backends.kernels.select import Place, place_of
from backends.layers.embedding import Embedding
from backends.layers.linear import Format, Linear, linear
from backends.layers.parallel import AddedLinear, JoinedHead, JoinedLinear, Ranks, SharedEmbedding
from backends.layers.shard import ALONE, Shard
from backends.layers.unread import Unread
from backends.models.checkpoint import Checkpoint
from backends.models.config import DecoderConfig
from backends.models.decoder import Block, Decoder
from backends.models.formats import is_kept, suited
from backends.models.sharding import divided, is_output, own_rows
from backends.models.stored import WHOLE, Kind, Part, Stored, StoredTensor, rows_of
from backends.quantization.gguf import dequantize
from backends.quantization.stacks import Quantized, stackable, stacked
from backends.resident import give_back
from backends.wire import Quantization

_log = logging.getLogger(__name__)

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

AT_A_TIME = 256 << 20  # bytes of files that may be in memory beside the weights made of them

_FIRST_ROW = Part((range(1),))

# Where the text model of a larger one is, in the checkpoints of transformers 4 and of transformers 5; and its head.
_INSIDE = {"language_model.model.": "language_model.lm_head.weight", "model.language_model.": HEAD}


def load_decoder(
    checkpoint: Checkpoint,
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device,
    vocab_size: int | None = None,
    quantization: Quantization = "none",
    ranks: Ranks | None = None,
    place: Place | None = None,
) -> Decoder:
    """The decoder of `config` with the checkpoint's weights, or one rank's part of it.

    `vocab_size`: only so many ids get logits (a checkpoint's vocabulary may be padded beyond the tokenizer's).
    `quantization`: of the weights of all linear layers, the head too; embeddings stay what they are. `place`: where the
    linear layers are; None: on the device, as `place_of` says.
    Raises ValueError naming a tensor that is missing, of the wrong shape, unknown to this architecture, or otherwise
    quantised than was asked for.
    """
    prefix = prefix_of(checkpoint)
    head_name = _INSIDE.get(prefix, HEAD)
    source = _Source(checkpoint, config, dtype, device, place or place_of(device), quantization, ranks)
    rows = config.vocab_size if vocab_size is None else min(vocab_size, config.vocab_size)
    embedding_name = f"{prefix}embed_tokens.weight"
    shape = config.vocab_size, config.width
    embedding = source.embedding(embedding_name, shape)
    blocks = []
    for layer in range(config.layers):
        blocks.append(block_of(source, config, f"{prefix}layers.{layer}"))
        give_back(beyond=AT_A_TIME)
    norm = source.norm(f"{prefix}norm.weight", config.width)
    head = (
        source.head(embedding_name, shape, rows, embedding)
        if config.tied
        else source.head(head_name, shape, rows)
    )
    # Beside the text model inside a larger one lies what is not for text.
    source.refuse_unknown(prefix if prefix in _INSIDE else "")
    if quantization != "none" or source.formats.keys() > {"none"}:
        _log.info("quantization %s: %s", quantization, source.told_formats())
    looked_up = embedding if ranks is None else SharedEmbedding(embedding, ranks, config.vocab_size)
    return Decoder(divided(config, source.shard.ranks), looked_up, blocks, norm, head, rows)


def prefix_of(checkpoint: Checkpoint) -> str:
    """What the names of a checkpoint's tensors begin with."""
    names = checkpoint.names()
    return next((prefix for prefix in _INSIDE if f"{prefix}embed_tokens.weight" in names), "model.")


@dataclass
class _Source:
    checkpoint: Checkpoint
    config: DecoderConfig
    dtype: torch.dtype
    device: torch.device
    place: Place
    quantization: Quantization
    ranks: Ranks | None
    used: set[str] = field(default_factory=set)
    formats: Counter[Format] = field(default_factory=Counter)  # of how many linears

    @property
    def shard(self) -> Shard:
        return ALONE if self.ranks is None else self.ranks.shard

    def tensor(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> torch.Tensor:
        return self._load(name, self.dtype, shape, part)

    def embedding(self, name: str, shape: tuple[int, int]) -> Embedding:
        """This rank's part: on a CPU as the file has it, a copy, as of norms, where that is smaller and no tied head
        multiplies by it."""
        part, stored = Part((self.shard.share(shape[0]),)), self._stored(name, shape)
        looked_up = self.device.type == "cpu" and not (self.config.tied and self._format([name]) == "none")
        if looked_up and isinstance(stored, StoredTensor) and stored.is_smaller_than(self.dtype):
            expand = partial(dequantize, type=stored.type, dtype=self.dtype)
            return Embedding(rows_of(stored.read(), part).clone(), self.dtype, expand)
        return Embedding.of(self.tensor(name, shape, part))

    def norm(self, name: str, width: int) -> torch.Tensor:
        """What the norm multiplies by; a copy, since a whole file stays in memory for the smallest part of it."""
        weight = self._load(name, torch.float32, (width,))
        return weight + self.config.norm_offset if self.config.norm_offset else weight.clone()

    def norms(self, names: Sequence[str], width: int) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = (self.norm(f"{name}.weight", width) for name in names)
        return first, second

    def fused(self, names: Sequence[str], rows: Sequence[int], columns: int, bias: bool) -> Linear:
        """One linear of several projections: their rows one below another, as far as they are this rank's."""
        if self.ranks is not None and is_output(names[0]):
            return self._output(self.ranks, names[0], (rows[0], columns), bias)
        return self._rows(names, rows, columns, bias)

    def _output(self, ranks: Ranks, name: str, shape: tuple[int, int], bias: bool) -> Linear:
        """A linear whose inputs the ranks have in equal parts."""
        if self._format([f"{name}.weight"]) != "none":
            return JoinedLinear(self._rows([name], shape[:1], shape[1], bias), ranks, shape[0])
        self.formats["none"] += 1
        weight = self.tensor(f"{name}.weight", shape, Part(columns=self.shard.share(shape[1])))
        added = self.tensor(f"{name}.bias", shape[:1]) if bias else None
        return AddedLinear(linear(weight, added if self.shard.rank == 0 else None, place=self.place), ranks)

    def _rows(self, names: Sequence[str], rows: Sequence[int], columns: int, bias: bool) -> Linear:
        parts = [
            Part(own_rows(name, n, self.config, self.shard)) for name, n in zip(names, rows, strict=True)
        ]
        added = (
            torch.cat([self._bias(*each) for each in zip(names, rows, parts, strict=True)]) if bias else None
        )
        wanted = [
            (f"{name}.weight", (n, columns), part) for name, n, part in zip(names, rows, parts, strict=True)
        ]
        return self._linear(wanted, added)

    def _linear(
        self,
        wanted: Sequence[tuple[str, tuple[int, int], Part]],
        bias: torch.Tensor | None = None,
        loaded: torch.Tensor | Unread | None = None,
    ) -> Linear:
        """Of parts of tensors by their names and shapes, one below another; `loaded`: the same as whole numbers."""
        names = [name for name, _, _ in wanted]
        format = self._format(names)
        self.formats[format] += 1
        weight: torch.Tensor | Unread | Quantized
        if format == "int4":
            weight = stacked([self._stored(name, shape).four_bits(part) for name, shape, part in wanted])
        elif format != "none" and is_kept(self._kinds(names), self.place.capability):
            weight = stacked([self._stored(name, shape).packed(part) for name, shape, part in wanted])
        elif loaded is not None:
            weight = loaded
        else:
            weights = [self.tensor(*each) for each in wanted]
            weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        try:
            return linear(weight, bias, format=format, place=self.place)
        except ValueError as error:
            raise ValueError(f"{names[0]}: {error}") from None

    def _bias(self, name: str, rows: int, part: Part) -> torch.Tensor:
        return rows_of(self.tensor(f"{name}.bias", (rows,)), part)

    def head(
        self, name: str, shape: tuple[int, int], rows: int, embedding: Embedding | None = None
    ) -> Linear:
        """The first `rows` of a tensor, whose own part may be in the `embedding`."""
        share = self.shard.share(shape[0])
        own = range(share.start, max(share.start, min(share.stop, rows)))
        head = self._head(name, shape, own, embedding) if own else None
        if self.ranks is not None:
            return JoinedHead(head, self.ranks, shape[0], rows)
        assert head is not None, "a vocabulary has ids"
        return head

    def _head(self, name: str, shape: tuple[int, int], own: range, embedding: Embedding | None) -> Linear:
        def read(rows: range) -> torch.Tensor:
            return self.tensor(name, shape, Part((own[rows.start : rows.stop],)))

        loaded: torch.Tensor | Unread = Unread((len(own), shape[1]), read)
        if embedding is not None and embedding.expand is None:
            loaded = embedding.table[: len(own)]
        return self._linear([(name, shape, Part((own,)))], loaded=loaded)

    def told_formats(self) -> str:
        """How the linears are kept, in words."""
        names = {"none": str(self.dtype).removeprefix("torch."), "fp8a16": "fp8 by inputs of 16 bits"}
        counts = self.formats.most_common()
        return ", ".join(f"{count} linears in {names.get(format, format)}" for format, count in counts)

    def _format(self, names: Sequence[str]) -> Format:
        stored = self._stored(names[0])
        try:
            return suited(self.quantization, self._kinds(names), stored.shape[-1], self.place.capability)
        except ValueError as error:
            raise ValueError(f"{names[0]}: is {stored.type} in the file: {error}") from None

    def _kinds(self, names: Sequence[str]) -> set[Kind]:
        """How these tensors lie in the files, as far as they can lie one below another."""
        stored = [self._stored(name) for name in names]
        kinds = {each.kind for each in stored}
        if len(stored) > 1 and kinds & {"four", "eight", "float8"} and len(kinds) == 1:
            return kinds if stackable([each.packed(_FIRST_ROW) for each in stored]) else {"small"}
        return kinds

    def _load(
        self, name: str, dtype: torch.dtype, shape: tuple[int, ...], part: Part = WHOLE
    ) -> torch.Tensor:
        self._stored(name, shape)
        return self.checkpoint.load(name, dtype, part).to(self.device)

    def _stored(self, name: str, shape: tuple[int, ...] | None = None) -> Stored:
        """Of a tensor that is used from now on, and has `shape` where it is known."""
        if name not in self.checkpoint.names():
            raise ValueError(f"{name}: missing from the checkpoint")
        stored = self.checkpoint.stored(name)
        if shape is not None and stored.shape != shape:
            raise ValueError(f"{name}: has shape {stored.shape}, config.json says {shape}")
        self.used.add(name)
        return stored

    def refuse_unknown(self, prefix: str) -> None:
        """A tensor that nobody asked for means that the model computes something that we would leave out."""
        unknown = (
            name
            for name in sorted(self.checkpoint.names() - self.used)
            # A tied head may be stored a second time; old checkpoints hold the frequencies of the rope.
            if name.startswith(prefix) and name != HEAD and not name.endswith(".rotary_emb.inv_freq")
            # Tools that quantise write a bias of zeros for layers that have none.
            if not (name.endswith(".bias") and not self.checkpoint.load(name, torch.float32).any())
        )
        for name in unknown:
            raise ValueError(f"{name}: the checkpoint has it, the architecture does not")


class BlockSource(Protocol):
    """Where the weights of a block come from, by Hugging Face's names of them."""

    def norm(self, name: str, width: int) -> torch.Tensor: ...

    def norms(self, names: Sequence[str], width: int) -> tuple[torch.Tensor, torch.Tensor]: ...

    def fused(self, names: Sequence[str], rows: Sequence[int], columns: int, bias: bool) -> Linear: ...


def block_of(source: BlockSource, config: DecoderConfig, prefix: str) -> Block:
    """The block whose tensors' names begin with `prefix`."""
    width, queries = config.width, config.heads * config.head_dim
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    after_attention = f"{prefix}.post_attention_layernorm"
    before_mlp = f"{prefix}.pre_feedforward_layernorm" if config.post_norms else after_attention
    heads, after = [f"{attention}.q_norm", f"{attention}.k_norm"], f"{prefix}.post_feedforward_layernorm"
    return Block(
        attention_norm=source.norm(f"{prefix}.input_layernorm.weight", width),
        qkv=_qkv(source, config, attention),
        output=source.fused([f"{attention}.o_proj"], [width], queries, config.output_bias),
        mlp_norm=source.norm(f"{before_mlp}.weight", width),
        gate_up=_gate_up(source, config, mlp),
        down=source.fused([f"{mlp}.down_proj"], [width], config.mlp_width, config.mlp_bias),
        head_norms=source.norms(heads, config.head_dim) if config.head_norms else None,
        post_norms=source.norms([after_attention, after], width) if config.post_norms else None,
    )


def _qkv(source: BlockSource, config: DecoderConfig, attention: str) -> Linear:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    names, rows = [f"{attention}.{side}_proj" for side in "qkv"], [queries, keys, keys]
    if config.fused_projections:
        names, rows = [f"{attention}.qkv_proj"], [sum(rows)]
    return source.fused(names, rows, config.width, config.qkv_bias)


def _gate_up(source: BlockSource, config: DecoderConfig, mlp: str) -> Linear:
    names, rows = [f"{mlp}.gate_proj", f"{mlp}.up_proj"], [config.mlp_width] * 2
    if config.fused_projections:
        names, rows = [f"{mlp}.gate_up_proj"], [sum(rows)]
    return source.fused(names, rows, config.width, config.mlp_bias)
