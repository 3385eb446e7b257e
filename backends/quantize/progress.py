"""How far a calibration has come through a model: what its tokens are behind the blocks that are done."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from safetensors import safe_open

from backends.kernels.layout import KVCache, Layout, Span
from backends.layers.embedding import Embedding
from backends.models.config import DecoderConfig
from backends.models.decoder import embed, kernels_of, through
from backends.quantize.checkpoint import write_tensors
from backends.quantize.subject import Subject

_BLOCK = 16  # tokens of a block of the cache


@dataclass
class Passage:
    """`layer`: the block that is next. `residual` and `update` float32 [tokens, width] are what goes into it, see
    `decoder.through`; None where nothing is calibrated."""

    config: DecoderConfig
    layer: int
    shape: tuple[int, int] = (0, 0)  # samples, and tokens of each
    residual: torch.Tensor | None = None
    update: torch.Tensor | None = None

    @classmethod
    def begin(cls, config: DecoderConfig, ids: torch.Tensor, embedding: torch.Tensor) -> Self:
        """Before the first block. `ids` int64 [samples, length]; `embedding` float32 [vocabulary, width]."""
        samples, length = ids.shape
        update = embed(Embedding.of(embedding), ids.flatten().to(embedding.device), config)
        return cls(config, 0, (samples, length), torch.zeros_like(update), update)

    @classmethod
    def load(cls, path: Path, config: DecoderConfig, ids: torch.Tensor, device: torch.device) -> Self:
        """What `save` wrote. Raises OSError, SafetensorError."""
        samples, length = ids.shape
        with safe_open(path, framework="pt") as file:
            layer = int(file.metadata()["layer"])
            residual, update = (file.get_tensor(name).to(device) for name in ("residual", "update"))
        return cls(config, layer, (samples, length), residual, update)

    def save(self, path: Path) -> None:
        """Whole or not at all."""
        if self.residual is not None and self.update is not None:
            write_tensors(path, {"residual": self.residual, "update": self.update}, layer=str(self.layer))

    def take(self, subject: Subject) -> None:
        """Through the block `layer`, which is quantised by that."""
        if self.residual is None or self.update is None:
            for each in subject.linears:
                each.quantise(None)
        else:
            self.update = self._through(subject, self.residual, self.update)
        self.layer += 1

    def _through(self, subject: Subject, residual: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        """Every sample is a sequence of its own. The cache has this one layer."""
        config = replace(
            self.config,
            layers=1,
            window_layers=frozenset({0} if self.layer in self.config.window_layers else ()),
            unrotated_layers=frozenset({0} if self.layer in self.config.unrotated_layers else ()),
        )
        samples, length = self.shape
        blocks = -(-length // _BLOCK)
        cache = KVCache(
            1, samples * blocks, _BLOCK, config.kv_heads, config.head_dim, dtype=torch.float32, device=update.device
        )  # fmt: skip
        border = config.rope.border
        shift = length if border is not None and length > border else 0
        spans = [Span(0, length, range(n * blocks, (n + 1) * blocks), shift) for n in range(samples)]
        kernels = kernels_of(config, cache, length)
        with torch.inference_mode():
            return through(0, subject.block, config, residual, update, Layout(spans, cache), kernels)
