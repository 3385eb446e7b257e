import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache.affinity import Affinity, block_keys


def test_keys_are_what_the_docstring_says() -> None:
    root = hashlib.sha256(b"salt" + bytes([1, 0, 0, 0, 0, 0, 0, 0]) + b"s").digest()[:16]
    first = hashlib.sha256(root + bytes([1, 0, 0, 0, 2, 0, 0, 0])).digest()[:16]
    second = hashlib.sha256(first + bytes([3, 0, 0, 0, 4, 0, 0, 0])).digest()[:16]
    assert block_keys(b"s", [1, 2, 3, 4, 5], 2) == [first, second]


def test_only_full_blocks_have_keys() -> None:
    assert [len(block_keys(b"", range(n), 4)) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_a_key_stands_for_everything_before_it() -> None:
    one, other = block_keys(b"", [1, 2, 3, 4], 2), block_keys(b"", [9, 2, 3, 4], 2)
    assert not set(one) & set(other)


@pytest.mark.parametrize(("one", "other"), [(b"", b"a"), (b"a", b"b"), (b"a", b"a\0"), (b"salt", b"")])
def test_salts_share_no_key(one: bytes, other: bytes) -> None:
    assert not set(block_keys(one, range(64), 16)) & set(block_keys(other, range(64), 16))


@given(ids=st.lists(st.integers(0, 2**32 - 1), max_size=40), size=st.integers(1, 5), blocks=st.integers(1, 8))
def test_going_on_from_a_key_gives_the_same_keys(ids: list[int], size: int, blocks: int) -> None:
    keys = block_keys(b"s", ids, size)
    if len(keys) >= blocks:
        assert keys[:blocks] + block_keys(b"s", ids[blocks * size :], size, keys[blocks - 1]) == keys


def test_a_block_size_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="block_size"):
        block_keys(b"", [1], 0)


def test_lookup_counts_leading_keys_without_a_hole() -> None:
    affinity = Affinity()
    affinity.snapshot("7b/0", [b"1", b"2", b"4"])
    affinity.snapshot("7b/1", [b"2"])
    assert affinity.lookup([b"1", b"2", b"3", b"4"]) == {"7b/0": 2, "7b/1": 0}
    assert affinity.lookup([b"1", b"2"]) == {"7b/0": 2, "7b/1": 0}
    assert affinity.lookup([]) == {"7b/0": 0, "7b/1": 0}


def test_changes_are_applied_in_their_order() -> None:
    affinity = Affinity()
    affinity.snapshot("a", [b"1"])
    affinity.stored("a", [b"2", b"3"])
    affinity.evicted("a", [b"3"])
    assert affinity.lookup([b"1", b"2", b"3"]) == {"a": 2}
    affinity.evicted("a", [b"1"])
    affinity.stored("a", [b"3"])
    assert affinity.lookup([b"1", b"2", b"3"]) == {"a": 0}


def test_a_snapshot_replaces_what_was_known() -> None:
    affinity = Affinity()
    affinity.stored("a", [b"1", b"2"])
    affinity.snapshot("a", [b"1"])
    assert affinity.lookup([b"1", b"2"]) == {"a": 1}
