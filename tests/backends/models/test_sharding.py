"""What each rank gets of a model: every part once, and models that do not divide are refused with the reason."""

from dataclasses import replace
from typing import Any

import pytest

from backends.layers.rotation import Rope
from backends.layers.shard import Shard
from backends.models.config import ConfigError, DecoderConfig
from backends.models.sharding import divided, is_output, own_rows

CONFIG = DecoderConfig(
    layers=1,
    width=96,
    mlp_width=144,
    heads=12,
    kv_heads=6,
    head_dim=8,
    vocab_size=199,
    max_positions=64,
    norm_eps=1e-6,
    rope=Rope(theta=1e4),
    tied=False,
)


def only(name: str, rows: int, config: DecoderConfig, shard: Shard) -> range:
    [run] = own_rows(name, rows, config, shard)
    return run


def each(ranks: int) -> list[Shard]:
    return [Shard(rank, ranks) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 300])
@pytest.mark.parametrize("total", [1, 96, 199])
def test_shares_cover_everything_once(ranks: int, total: int) -> None:
    shares = [shard.share(total) for shard in each(ranks)]
    assert [place for share in shares for place in share] == list(range(total))
    assert max(map(len, shares)) == each(ranks)[0].size(total)


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_heads_are_divided(ranks: int) -> None:
    own = divided(CONFIG, ranks)
    assert (own.heads, own.kv_heads, own.mlp_width) == (12 // ranks, 6 // ranks, 144 // ranks)
    for side, rows in (("q", 96), ("k", 48), ("v", 48)):
        parts = [only(f"layers.0.{side}_proj", rows, CONFIG, shard) for shard in each(ranks)]
        assert [row for part in parts for row in part] == list(range(rows))


@pytest.mark.parametrize(("kv_heads", "ranks"), [(1, 2), (1, 3), (2, 4), (2, 12), (3, 6), (4, 12), (12, 12)])
def test_ranks_have_the_heads_that_their_queries_ask(kv_heads: int, ranks: int) -> None:
    """Those of keys and values are repeated where they are too few."""
    config = replace(CONFIG, kv_heads=kv_heads)
    own = divided(config, ranks)
    assert own.heads % own.kv_heads == 0
    for shard in each(ranks):
        queries, keys = only("q_proj", 96, config, shard), only("k_proj", kv_heads * 8, config, shard)
        assert len(keys) == own.kv_heads * 8
        asked = {row // 8 * kv_heads // 12 for row in queries}
        assert asked == {row // 8 for row in keys}


@pytest.mark.parametrize(
    ("fields", "ranks", "reason"),
    [
        ({}, 5, "5 ranks cannot divide num_attention_heads, 12"),
        ({"mlp_width": 145}, 2, "2 ranks cannot divide intermediate_size, 145"),
        ({"kv_heads": 2}, 3, "3 ranks can neither divide num_key_value_heads, 2, nor have the same one each"),
        ({"kv_heads": 4}, 6, "6 ranks can neither divide num_key_value_heads, 4"),
    ],
)
def test_what_does_not_divide_is_refused(fields: dict[str, Any], ranks: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^tensor_parallel: {reason}"):
        divided(replace(CONFIG, **fields), ranks)


def test_projections_of_one_tensor_are_cut_where_each_begins() -> None:
    second = Shard(1, 2)
    assert own_rows("a.qkv_proj", 192, CONFIG, second) == (range(48, 96), range(120, 144), range(168, 192))
    assert own_rows("a.gate_up_proj", 288, CONFIG, second) == (range(72, 144), range(216, 288))
    assert own_rows("a.up_proj", 144, CONFIG, second) == (range(72, 144),)


def test_what_leads_out_of_a_part_has_its_inputs_divided() -> None:
    assert is_output("layers.0.self_attn.o_proj") and is_output("layers.0.mlp.down_proj")
    assert not is_output("layers.0.mlp.up_proj")
