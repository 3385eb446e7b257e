from collections.abc import Callable

import pytest

from backends.engine.cache import BlockCache
from backends.engine.sequence import Sequence
from prefixcache.affinity import block_keys

Make = Callable[..., Sequence]


@pytest.fixture
def cache() -> BlockCache:
    return BlockCache(8, 2)


def start(cache: BlockCache, sequence: Sequence, computed: int) -> Sequence:
    """Adopt what is cached, and pretend that the rest, up to `computed`, was run."""
    cache.adopt(sequence, cache.match(sequence))
    cache.extend(sequence, computed)
    sequence.computed = computed
    if computed == len(sequence.ids):
        sequence.ids.append(99)
    return sequence


def test_the_last_token_of_a_prompt_is_never_taken_from_the_cache(cache: BlockCache, sequence: Make) -> None:
    cache.release(start(cache, sequence([1, 2, 3, 4, 5]), 4), keep=True)
    assert len(cache.match(sequence([1, 2, 3, 4])).blocks) == 1
    assert len(cache.match(sequence([1, 2, 3, 4, 5])).blocks) == 2


def test_only_full_computed_blocks_are_stored(cache: BlockCache, sequence: Make) -> None:
    one = start(cache, sequence([1, 2, 3, 4, 5, 6]), 3)
    cache.store(one)
    assert (one.shared, len(one.blocks)) == (1, 2)
    assert cache.changes() == (block_keys(b"", [1, 2], 2), [])
    cache.check([one])


def test_a_sequence_goes_on_with_the_blocks_of_an_equal_one(cache: BlockCache, sequence: Make) -> None:
    one, other = (start(cache, sequence([1, 2, 3, 4, 5]), 5) for _ in range(2))
    cache.store(one)
    cache.store(other)
    assert one.blocks[:2] == other.blocks[:2]
    assert one.blocks[2] != other.blocks[2]
    assert cache.free == 8 - 4
    cache.check([one, other])


def test_shared_blocks_stay_until_the_last_one_lets_go(cache: BlockCache, sequence: Make) -> None:
    one, other = (start(cache, sequence([1, 2, 3, 4, 5]), 5) for _ in range(2))
    cache.store(one)
    cache.store(other)
    cache.release(one, keep=True)
    assert (cache.free, cache.evictable) == (5, 0)
    cache.check([other])
    cache.release(other, keep=True)
    assert (cache.free, cache.evictable, cache.available) == (6, 2, 8)
    cache.check([])


def test_without_keep_only_what_was_cached_before_stays(cache: BlockCache, sequence: Make) -> None:
    one = start(cache, sequence([1, 2, 3, 4, 5, 6, 7]), 2)
    cache.store(one)
    cache.extend(one, 6)
    one.computed = 6
    cache.release(one, keep=False)
    assert (cache.free, cache.evictable) == (7, 1)
    cache.check([])


def test_extending_evicts_what_nobody_uses(cache: BlockCache, sequence: Make) -> None:
    cache.release(start(cache, sequence([1] * 9), 8), keep=True)
    one = start(cache, sequence([2] * 15), 14)
    assert (cache.free, cache.evictable) == (0, 1)
    with pytest.raises(ValueError, match="wanted"):
        cache.extend(one, 20)


def test_cost_counts_what_a_match_takes_from_others(cache: BlockCache, sequence: Make) -> None:
    cache.release(start(cache, sequence([1, 2, 3, 4, 5]), 4), keep=True)
    one = sequence([1, 2, 3, 4, 5])
    assert cache.cost(one, cache.match(one)) == 3
    start(cache, one, 5)
    assert cache.available == 8 - 3
    other = sequence([1, 2, 3, 4, 6])
    assert cache.cost(other, cache.match(other)) == 1


def test_salts_share_no_blocks(cache: BlockCache, sequence: Make) -> None:
    cache.release(start(cache, sequence([1, 2, 3], salt=b"a"), 2), keep=True)
    assert cache.match(sequence([1, 2, 3], salt=b"b")).blocks == []
    assert cache.keys() == block_keys(b"a", [1, 2], 2)


def test_check_sees_a_lost_block(cache: BlockCache, sequence: Make) -> None:
    one = start(cache, sequence([1, 2, 3]), 2)
    cache.extend(one, 3)
    cache.check([one])
    one.blocks.pop()
    with pytest.raises(AssertionError):
        cache.check([one])


def test_check_sees_a_block_that_two_would_write(cache: BlockCache, sequence: Make) -> None:
    one, other = (start(cache, sequence([1, 2, 3]), 2) for _ in range(2))
    cache.check([one, other])
    other.blocks = list(one.blocks)
    with pytest.raises(AssertionError):
        cache.check([one, other])
