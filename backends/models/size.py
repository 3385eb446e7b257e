"""How many weights a decoder has and what its cache holds, from its shape alone."""

from dataclasses import dataclass

from backends.models.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Weights:
    """How many weights there are, by what becomes of them when a model is quantised."""

    linears: int  # of the products inside the blocks, which formats pack
    rows: int  # of these products, all layers together: each may have a scale of its own
    embeddings: int  # of the embedding, and of the head where that is another tensor
    rest: int  # norms and biases

    @property
    def total(self) -> int:
        return self.linears + self.embeddings + self.rest


def weights(config: DecoderConfig) -> Weights:
    """Per layer: queries and output [width, heads · head_dim], keys and values [width, kv_heads · head_dim], gate, up
    and down [width, mlp_width], two norms or four, two more of single heads; then embedding, head and the last norm."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    linears = config.width * (2 * queries + 2 * keys + 3 * config.mlp_width)
    rows = queries + 2 * keys + 2 * config.mlp_width + 2 * config.width
    biases = (
        config.qkv_bias * (queries + 2 * keys)
        + config.output_bias * config.width
        + config.mlp_bias * (2 * config.mlp_width + config.width)
    )
    norms = (4 if config.post_norms else 2) * config.width + config.head_norms * 2 * config.head_dim
    return Weights(
        linears=config.layers * linears,
        rows=config.layers * rows,
        embeddings=(1 if config.tied else 2) * config.vocab_size * config.width,
        rest=config.layers * (biases + norms) + config.width,
    )


def cached_tokens(config: DecoderConfig, tokens: int) -> int:
    """For how many (token, layer) pairs a sequence of `tokens` needs keys and values: layers with a window look no
    further back than that."""
    seen = tokens if config.window is None else min(tokens, config.window)
    return (config.layers - len(config.window_layers)) * tokens + len(config.window_layers) * seen


def attended_pairs(config: DecoderConfig, tokens: int) -> int:
    """How many pairs of tokens a prompt of `tokens` has to compare, in each head, all layers together: a token sees
    itself and those before it, in layers with a window at most that many."""
    seen = tokens if config.window is None else min(tokens, config.window)
    whole, windowed = tokens * (tokens + 1) // 2, seen * (seen + 1) // 2 + (tokens - seen) * seen
    return (config.layers - len(config.window_layers)) * whole + len(config.window_layers) * windowed
