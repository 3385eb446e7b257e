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
    affinity.snapshot("7b/0", 0, [b"1", b"2", b"4"])
    affinity.snapshot("7b/1", 0, [b"2"])
    assert affinity.lookup([b"1", b"2", b"3", b"4"]) == {"7b/0": 2, "7b/1": 0}
    assert affinity.lookup([b"1", b"2"]) == {"7b/0": 2, "7b/1": 0}
    assert affinity.lookup([]) == {"7b/0": 0, "7b/1": 0}


def test_changes_in_order_are_applied_and_no_gap() -> None:
    affinity = Affinity()
    assert not affinity.snapshot("a", 7, [b"1"])
    assert not affinity.stored("a", 8, [b"2", b"3"])
    assert not affinity.evicted("a", 9, [b"3"])
    assert affinity.lookup([b"1", b"2", b"3"]) == {"a": 2}


def test_a_gap_is_told_once_and_mended_by_a_snapshot() -> None:
    affinity = Affinity()
    affinity.snapshot("a", 1, [b"1"])
    assert affinity.stored("a", 3, [b"2"])
    assert not affinity.stored("a", 4, [b"3"])
    assert affinity.lookup([b"1", b"2", b"3"]) == {"a": 3}
    affinity.snapshot("a", 5, [b"1"])
    assert not affinity.stored("a", 6, [b"2"])
    assert affinity.lookup([b"1", b"2", b"3"]) == {"a": 2}


def test_a_change_before_any_snapshot_is_a_gap() -> None:
    affinity = Affinity()
    assert affinity.stored("a", 5, [b"1"])
    assert not affinity.evicted("a", 6, [b"1"])
    assert affinity.lookup([b"1"]) == {"a": 0}


def test_changes_that_a_snapshot_contains_are_not_applied_again() -> None:
    affinity = Affinity()
    affinity.snapshot("a", 5, [b"1"])
    assert not affinity.evicted("a", 5, [b"1"])
    assert not affinity.stored("a", 4, [b"2"])
    assert affinity.lookup([b"1", b"2"]) == {"a": 1}


def test_a_restarted_engine_begins_again_at_a_lower_number() -> None:
    affinity = Affinity()
    affinity.snapshot("a", 500, [b"1"])
    affinity.snapshot("a", 0, [])
    assert not affinity.stored("a", 1, [b"1"])
    assert affinity.lookup([b"1"]) == {"a": 1}


def test_a_forgotten_replica_holds_nothing() -> None:
    affinity = Affinity()
    affinity.snapshot("a", 0, [b"1"])
    affinity.forget("a")
    affinity.forget("never seen")
    assert affinity.lookup([b"1"]) == {}
