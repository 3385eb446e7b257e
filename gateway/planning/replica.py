"""One model in one format on one or more GPUs of a kind: what fits beside it, and how long its steps take."""

import math
from dataclasses import dataclass

from backends.models.config import DecoderConfig
from backends.models.size import attended_pairs, cached_tokens, weights
from gateway.planning.assumptions import Assumptions
from gateway.planning.formats import PRODUCTS, group, kv_bytes, weight_bytes
from gateway.planning.gpus import Gpu

GIGA, TERA, MICRO = 1e9, 1e12, 1e-6


def obstacle(config: DecoderConfig, degree: int, format: str) -> str | None:
    """Why a model cannot be cut into `degree` equal parts: heads, KV heads (which may be repeated, where there are
    fewer of them) and the MLP have to divide, in int4 also into whole groups. None where it can."""
    if config.heads % degree:
        return f"{degree} GPUs do not divide {config.heads} heads"
    if config.kv_heads % degree and degree % config.kv_heads:
        return f"{degree} GPUs and {config.kv_heads} KV heads do not divide one another"
    if config.mlp_width % degree:
        return f"{degree} GPUs do not divide the MLP's {config.mlp_width} columns"
    if format == "int4" and degree > 1:
        size = group(config) * degree
        for columns in (config.heads * config.head_dim, config.mlp_width):
            if columns % size:
                return f"{degree} GPUs cut groups of {group(config)} among {columns} inputs"
    return None


@dataclass(frozen=True, slots=True)
class Replica:
    """`degree`: GPUs of tensor parallelism. `draft`: a smaller model that drafts, whole on each of the GPUs."""

    config: DecoderConfig
    format: str
    gpu: Gpu
    degree: int
    given: Assumptions
    draft: DecoderConfig | None = None

    @property
    def drafter(self) -> "Replica | None":
        """The draft by itself, on one GPU."""
        return None if self.draft is None else Replica(self.draft, self.format, self.gpu, 1, self.given)

    @property
    def weight_bytes_per_gpu(self) -> float:
        """weights / degree, and the draft's."""
        own = weight_bytes(self.config, self.format) / self.degree
        return own if self.drafter is None else own + self.drafter.weight_bytes_per_gpu

    @property
    def room(self) -> float:
        """Bytes for keys and values on each GPU: memory · share - weights; negative where these do not fit."""
        return self.gpu.memory_gb * GIGA * self.given.memory_share - self.weight_bytes_per_gpu

    def kv_per_gpu(self, tokens: float) -> float:
        """Bytes of one sequence on each GPU, whose KV heads are ⌈kv_heads / degree⌉."""
        part = math.ceil(self.config.kv_heads / self.degree) / self.config.kv_heads
        own = kv_bytes(self.config, tokens, self.given.kv) * part
        return own if self.drafter is None else own + self.drafter.kv_per_gpu(tokens)

    def sequences(self, tokens: int) -> int:
        """How many sequences of that many tokens fit: room / KV, not negative."""
        return max(0, math.floor(self.room / self.kv_per_gpu(tokens)))

    def limit(self, context: int) -> float:
        """Tokens a second of a single sequence that nothing can exceed: bandwidth / (weights + KV)."""
        read = weight_bytes(self.config, self.format) / self.degree + self._own_kv(context)
        return self.gpu.bandwidth * GIGA / read

    def step(self, batch: int, context: float, rows: int = 1) -> float:
        """Seconds in which `batch` sequences of `context` tokens get one token each, or have `rows` tokens verified.

        max(bytes / (bandwidth · efficiency), operations / (rate · efficiency)) + all-reduces, where the bytes are the
        weights, once, and each sequence's keys and values; operations are 2 · weights for each token's products and
        4 · heads · head_dim for each cached token and layer.
        """
        read = weight_bytes(self.config, self.format) / self.degree + batch * self._own_kv(context)
        products = 2 * self._products * batch * rows
        attention = self._attention * cached_tokens(self.config, round(context)) * batch * rows
        return self._seconds(read, products, attention) + self._reductions(batch * rows)

    def prefill(self, tokens: int) -> float:
        """Seconds in which a prompt is read: as a step, with the pairs of tokens that attend to one another. Of the
        head only the last token needs the product."""
        head = self.config.vocab_size * self.config.width
        products = 2 * (weights(self.config).linears * tokens + head)
        attention = self._attention * attended_pairs(self.config, tokens)
        read = weight_bytes(self.config, self.format) / self.degree
        return self._seconds(read, products, attention) + self._reductions(tokens)

    def _own_kv(self, context: float) -> float:
        part = math.ceil(self.config.kv_heads / self.degree) / self.config.kv_heads
        return kv_bytes(self.config, context, self.given.kv) * part

    @property
    def _products(self) -> int:
        return weights(self.config).linears + self.config.vocab_size * self.config.width

    @property
    def _attention(self) -> int:
        """Operations for each pair of tokens in a layer: a product with the key, and one with the value."""
        return 4 * self.config.heads * self.config.head_dim

    def _seconds(self, read: float, products: float, attention: float) -> float:
        rate = TERA * self.given.compute_efficiency * self.degree
        computed = products / (self.gpu.rate(PRODUCTS[self.format]) * rate)
        computed += attention / (self.gpu.rate("fp16") * rate)
        return max(read / (self.gpu.bandwidth * GIGA * self.given.memory_efficiency), computed)

    def _reductions(self, tokens: int) -> float:
        """Two all-reduces a layer and one of the embedding, in a ring: each moves 2 · (degree - 1) / degree of the
        activations, two bytes each."""
        if self.degree == 1:
            return 0.0
        moved = 2 * (self.degree - 1) / self.degree * tokens * self.config.width * 2
        each = self.given.reduce_us * MICRO + moved / (self.gpu.link * GIGA)
        return (2 * self.config.layers + 1) * each
