"""How ranks divide a model: whole heads, columns of the MLP, rows of the vocabulary (which are padded)."""

from collections.abc import Sequence
from dataclasses import replace

from backends.layers.shard import Shard
from backends.models.config import DecoderConfig
from backends.models.fields import ConfigError


def divided(config: DecoderConfig, ranks: int) -> DecoderConfig:
    """What each of `ranks` has of a model. Raises ConfigError naming what does not divide.

    Where there are more ranks than heads of keys and values, several ranks have the same one.
    """
    _check(ranks, "num_attention_heads", config.heads)
    _check(ranks, "intermediate_size", config.mlp_width)
    if config.kv_heads % ranks and ranks % config.kv_heads:
        raise ConfigError(
            f"tensor_parallel: {ranks} ranks can neither divide num_key_value_heads, {config.kv_heads}, "
            "nor have the same one each"
        )
    return replace(
        config,
        heads=config.heads // ranks,
        kv_heads=max(1, config.kv_heads // ranks),
        mlp_width=config.mlp_width // ranks,
    )


def _check(ranks: int, field: str, value: int) -> None:
    if value % ranks:
        raise ConfigError(f"tensor_parallel: {ranks} ranks cannot divide {field}, {value}")


def is_output(name: str) -> bool:
    """Whether a projection leads out of attention or the MLP: its inputs are divided, as the outputs of others are."""
    return name.endswith((".o_proj", ".down_proj"))


def own_rows(name: str, rows: int, config: DecoderConfig, shard: Shard) -> tuple[range, ...]:
    """Which of the `rows` of the projection `name` a rank has, run below run."""
    queries, keys = (config.heads, _queries(config, shard)), (config.kv_heads, _keys(config, shard))
    whole = {"q_proj": [queries], "k_proj": [keys], "v_proj": [keys], "qkv_proj": [queries, keys, keys]}
    kind = name.rpartition(".")[2]
    if kind in whole:
        return _behind([(count * config.head_dim, own) for count, own in whole[kind]])
    parts = 2 if kind == "gate_up_proj" else 1
    return _behind([(rows // parts, shard.share(rows // parts))] * parts)


def _queries(config: DecoderConfig, shard: Shard) -> range:
    return _times(shard.share(config.heads), config.head_dim)


def _keys(config: DecoderConfig, shard: Shard) -> range:
    """Of the heads of keys, and of those of values."""
    first = shard.rank * config.kv_heads // shard.ranks
    return _times(range(first, first + max(1, config.kv_heads // shard.ranks)), config.head_dim)


def _times(run: range, size: int) -> range:
    return range(run.start * size, run.stop * size)


def _behind(parts: Sequence[tuple[int, range]]) -> tuple[range, ...]:
    """`parts`: how many rows each has, and which of these; as rows of one tensor that has the parts one by one."""
    runs, above = [], 0
    for count, own in parts:
        runs.append(range(above + own.start, above + own.stop))
        above += count
    return tuple(runs)
