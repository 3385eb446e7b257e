"""Models with weights that nobody trained: for speed, which does not look at them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from backends.kernels.select import place_of
from backends.layers.embedding import Embedding
from backends.layers.linear import Linear, linear
from backends.models.config import DecoderConfig
from backends.models.decoder import Decoder
from backends.models.formats import suited
from backends.models.loader import block_of
from backends.models.registry import decoder_config
from backends.quantization.int4 import rounded
from backends.wire import Quantization

LLAMA: dict[str, Any] = {"model_type": "llama", "max_position_embeddings": 4096, "tie_word_embeddings": False}
SHAPES = {  # of 7B: as Mistral 7B and Llama 3 8B have it, but for the vocabulary
    "random-7b": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
    },
    "random-tiny": {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Source:
    """Draws what `block_of` asks for, such that numbers keep their size from layer to layer."""

    dtype: torch.dtype
    device: torch.device
    quantization: Quantization
    noise: torch.Generator

    def norm(self, name: str, width: int) -> torch.Tensor:
        return torch.ones(width, device=self.device)

    def norms(self, names: Sequence[str], width: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.norm(names[0], width), self.norm(names[1], width)

    def fused(self, names: Sequence[str], rows: Sequence[int], columns: int, bias: bool) -> Linear:
        weight = self.drawn(sum(rows), columns) / columns**0.5
        place = place_of(self.device)
        format = suited(self.quantization, {"whole"}, columns, place.capability)
        return linear(rounded(weight) if format == "int4" else weight, format=format, place=place)

    def drawn(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.noise, device=self.device, dtype=self.dtype)


def random_decoder(
    shape: dict[str, Any], dtype: torch.dtype, device: torch.device, quantization: Quantization
) -> Decoder:
    """The same weights on every call with the same arguments, as far as their number allows."""
    config: DecoderConfig = decoder_config(LLAMA | shape)
    source = _Source(dtype, device, quantization, torch.Generator(device).manual_seed(1))
    blocks = [block_of(source, config, f"model.layers.{layer}") for layer in range(config.layers)]
    embedding = Embedding.of(source.drawn(config.vocab_size, config.width))
    head = source.fused(["head"], [config.vocab_size], config.width, bias=False)
    return Decoder(config, embedding, blocks, source.norm("norm", config.width), head, config.vocab_size)
