"""How many bytes a model's weights and its keys and values take, by format.

Quantised weights are those of the products inside the blocks; embedding, head, norms and biases stay in 16 bits, as in
published checkpoints. A product in int8 or fp8 has a scale of 16 bits for each of its rows. int4 has groups of weights
with a scale of 16 bits and a zero of 4: 4 + 20 / group bits each, as AWQ and GPTQ store them.

Keys and values in int8, fp8 and int4 have one scale of 32 bits for each token and head.
"""

from backends.models.config import DecoderConfig
from backends.models.size import cached_tokens, weights

FORMATS = ("fp16", "int8", "int4", "fp8")
BITS = {"fp16": 16, "int8": 8, "int4": 4, "fp8": 8}
GROUPS = (128, 64, 32)
SCALE = 4  # bytes, of the keys and of the values of a token in one head

PRODUCTS = {"fp16": "fp16", "int8": "int8", "int4": "fp16", "fp8": "fp8"}
"""In which type a product with such weights is computed: four bits are widened, activations are quantised to eight."""


def group(config: DecoderConfig) -> int:
    """How many weights share a scale in int4: the largest of 128, 64 and 32 that divides all inputs.

    Raises ValueError where none does.
    """
    inputs = (config.width, config.heads * config.head_dim, config.mlp_width)
    for size in GROUPS:
        if not any(each % size for each in inputs):
            return size
    raise ValueError(f"int4: groups of {GROUPS[-1]} do not divide the widths {', '.join(map(str, inputs))}")


def weight_bytes(config: DecoderConfig, format: str) -> float:
    """All of a model's weights, in bytes. Raises ValueError where the shape has no such format."""
    count = weights(config)
    kept = 2 * (count.embeddings + count.rest)
    if format == "fp16":
        return 2 * count.linears + kept
    if format == "int4":
        return count.linears * (4 + 20 / group(config)) / 8 + kept
    return count.linears + 2 * count.rows + kept


def kv_bytes_per_token(config: DecoderConfig, format: str) -> float:
    """2 · layers · kv_heads · (head_dim · bits / 8 + scale): what one more token takes while no window is full.

    With one KV head for each head this is MHA, with fewer GQA, with one MQA.
    """
    return config.layers * _of_a_layer(config, format)


def kv_bytes(config: DecoderConfig, tokens: float, format: str) -> float:
    """The keys and values that a sequence of `tokens` looks at, in bytes: in layers with a window, those inside."""
    return cached_tokens(config, round(tokens)) * _of_a_layer(config, format)


def _of_a_layer(config: DecoderConfig, format: str) -> float:
    scale = 0 if format == "fp16" else SCALE
    return 2 * config.kv_heads * (config.head_dim * BITS[format] / 8 + scale)
