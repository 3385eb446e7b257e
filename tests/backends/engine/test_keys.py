import pytest

from backends.engine.keys import CacheKeys
from prefixcache.affinity import block_keys


@pytest.fixture
def keys() -> CacheKeys:
    return CacheKeys(2)


def test_keys_chain_over_several_calls(keys: CacheKeys) -> None:
    keys.store(b"s", [1, 2, 3, 4], [7, 8], None)
    keys.store(b"s", [5, 6], [9], 8)
    assert keys.all() == block_keys(b"s", [1, 2, 3, 4, 5, 6], 2)
    assert 9 in keys and 1 not in keys


def test_changes_are_told_once(keys: CacheKeys) -> None:
    expected = block_keys(b"", [1, 2, 3, 4], 2)
    keys.store(b"", [1, 2, 3, 4], [7, 8], None)
    assert keys.changes() == (expected, [])
    assert keys.changes() == ([], [])
    keys.evict([8])
    assert keys.changes() == ([], expected[1:])
    assert keys.all() == expected[:1]


def test_what_came_and_went_between_two_calls_is_not_told(keys: CacheKeys) -> None:
    """Else a listener that is told of evictions first would believe in a block for ever."""
    keys.store(b"", [1, 2], [7], None)
    keys.evict([7])
    assert keys.changes() == ([], [])


def test_what_went_and_came_back_is_not_told(keys: CacheKeys) -> None:
    keys.store(b"", [1, 2], [7], None)
    keys.changes()
    keys.evict([7])
    keys.store(b"", [1, 2], [3], None)
    assert keys.changes() == ([], [])
    assert 3 in keys and 7 not in keys
