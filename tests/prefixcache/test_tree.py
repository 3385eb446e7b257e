import pytest

from prefixcache.tree import RadixTree


@pytest.fixture
def tree() -> RadixTree:
    return RadixTree(2)


def test_an_empty_tree_matches_nothing(tree: RadixTree) -> None:
    match = tree.match(b"", [1, 2, 3])
    assert match.blocks == []
    tree.lock(match.node)
    tree.unlock(match.node)
    tree.check()


def test_the_longest_prefix_in_whole_blocks(tree: RadixTree) -> None:
    tree.insert(b"", [1, 2, 3, 4, 5, 6], [10, 11, 12])
    assert tree.match(b"", [1, 2, 3, 4, 5, 6, 7]).blocks == [10, 11, 12]
    assert tree.match(b"", [1, 2, 3, 4, 5]).blocks == [10, 11]
    assert tree.match(b"", [1, 2, 3, 9]).blocks == [10]
    assert tree.match(b"", [1]).blocks == []
    assert tree.match(b"", [9, 2, 3, 4]).blocks == []
    tree.check()


def test_prefixes_under_another_salt_are_not_found(tree: RadixTree) -> None:
    tree.insert(b"mine", [1, 2, 3, 4], [10, 11])
    for salt in (b"", b"yours", b"mine\0", b"min"):
        assert tree.match(salt, [1, 2, 3, 4]).blocks == []
    assert tree.insert(b"yours", [1, 2, 3, 4], [12, 13]).taken == [12, 13]
    assert tree.match(b"mine", [1, 2, 3, 4]).blocks == [10, 11]
    tree.check()


def test_a_salt_that_looks_like_tokens_is_still_a_salt(tree: RadixTree) -> None:
    tree.insert(bytes([1, 0, 0, 0, 2, 0, 0, 0]), [3, 4], [10])
    assert tree.match(b"", [1, 2, 3, 4]).blocks == []
    assert tree.match(bytes([1, 0, 0, 0]), [2, 3, 4, 5]).blocks == []


def test_insert_takes_what_is_new_and_refuses_duplicates(tree: RadixTree) -> None:
    tree.insert(b"", [1, 2, 3, 4], [10, 11])
    insertion = tree.insert(b"", [1, 2, 3, 4, 5, 6], [20, 11, 22])
    assert insertion.taken == [22]
    assert insertion.duplicates == [20]
    assert insertion.blocks == [10, 11, 22]
    assert tree.cached == 3
    tree.check()


def test_insert_needs_ids_for_all_its_blocks(tree: RadixTree) -> None:
    with pytest.raises(ValueError, match="ids"):
        tree.insert(b"", [1, 2, 3], [10, 11])


def test_a_block_size_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="block_size"):
        RadixTree(0)


def test_branches_share_their_beginning(tree: RadixTree) -> None:
    tree.insert(b"", [1, 2, 3, 4, 5, 6], [10, 11, 12])
    tree.insert(b"", [1, 2, 3, 4, 7, 8], [20, 21, 22])
    tree.insert(b"", [1, 2, 9, 9], [30, 31])
    assert tree.match(b"", [1, 2, 3, 4, 5, 6]).blocks == [10, 11, 12]
    assert tree.match(b"", [1, 2, 3, 4, 7, 8]).blocks == [10, 11, 22]
    assert tree.match(b"", [1, 2, 9, 9]).blocks == [10, 31]
    assert tree.cached == 5
    tree.check()


def test_eviction_goes_by_last_use_and_from_the_end(tree: RadixTree) -> None:
    tree.insert(b"", [1, 2, 3, 4], [10, 11])
    tree.insert(b"", [5, 6], [12])
    tree.match(b"", [1, 2, 3, 4])
    assert tree.evict(1) == [12]
    assert tree.evict(1) == [11]
    assert tree.match(b"", [1, 2, 3, 4]).blocks == [10]
    assert tree.evict(9) == [10]
    assert tree.evict(1) == []
    assert tree.cached == tree.evictable == 0
    tree.check()


def test_a_node_is_evicted_only_after_its_children(tree: RadixTree) -> None:
    tree.insert(b"", [1, 2], [10])
    tree.insert(b"", [1, 2, 3, 4], [10, 11])
    tree.insert(b"", [1, 2, 5, 6], [10, 12])
    assert tree.evict(2) == [11, 12]
    assert tree.evict(1) == [10]
    tree.check()


def test_locked_prefixes_stay(tree: RadixTree) -> None:
    tree.insert(b"", [1, 2, 3, 4, 5, 6], [10, 11, 12])
    match = tree.match(b"", [1, 2, 3, 4])
    assert tree.unlocked(match.node) == 2
    tree.lock(match.node)
    assert tree.unlocked(match.node) == 0
    assert tree.evictable == 1
    assert tree.evict(3) == [12]
    assert tree.match(b"", [1, 2, 3, 4]).blocks == [10, 11]
    tree.check()
    tree.unlock(match.node)
    assert tree.evictable == 2
    assert sorted(tree.clear()) == [10, 11]
    tree.check()


def test_a_lock_survives_a_split(tree: RadixTree) -> None:
    node = tree.insert(b"", [1, 2, 3, 4, 5, 6], [10, 11, 12]).node
    tree.lock(node)
    other = tree.match(b"", [1, 2, 9, 9]).node
    tree.lock(other)
    assert tree.prefix(node) == [10, 11, 12]
    assert tree.prefix(other) == [10]
    tree.unlock(node)
    tree.check()
    assert sorted(tree.clear()) == [11, 12]
    tree.unlock(other)
    assert tree.clear() == [10]
    tree.check()


def test_locks_count(tree: RadixTree) -> None:
    node = tree.insert(b"", [1, 2], [10]).node
    tree.lock(node)
    tree.lock(node)
    tree.unlock(node)
    assert tree.clear() == []
    tree.unlock(node)
    assert tree.clear() == [10]
    tree.check()


def test_unlocking_what_is_not_locked_is_an_error(tree: RadixTree) -> None:
    node = tree.insert(b"", [1, 2], [10]).node
    with pytest.raises(ValueError, match="not locked"):
        tree.unlock(node)
    tree.check()


def test_locking_what_was_evicted_is_an_error(tree: RadixTree) -> None:
    match = tree.insert(b"", [1, 2], [10])
    tree.clear()
    with pytest.raises(ValueError, match="no longer"):
        tree.lock(match.node)


def test_the_queue_does_not_grow_with_use(tree: RadixTree) -> None:
    for start in range(10):
        tree.insert(b"", [start, start], [start])
    for _ in range(1000):
        tree.match(b"", [3, 3])
        node = tree.match(b"", [4, 4]).node
        tree.lock(node)
        tree.unlock(node)
    assert len(tree._everybody._queue) == 10
    tree.check()


@pytest.mark.parametrize("break_it", ["cached", "evictable"])
def test_check_can_fail(tree: RadixTree, break_it: str) -> None:
    tree.insert(b"", [1, 2], [10])
    setattr(tree, f"_{break_it}", 2)
    with pytest.raises(AssertionError):
        tree.check()


def test_long_prompts_need_few_comparisons() -> None:
    """10,000 blocks match in well under the time that a look-up for each of them would need."""
    tree = RadixTree(16)
    ids = list(range(160_000))
    tree.insert(b"", ids, list(range(10_000)))
    branch = ids[:80_000] + [0] * 80_000
    assert tree.match(b"", branch).blocks == list(range(5_000))
    assert tree.match(b"", ids).blocks == list(range(10_000))
    assert sum(1 for _ in tree._nodes()) == 2
    tree.check()


def keep(tree: RadixTree, name: str, count: int, first: int, session: str = "") -> list[int]:
    """So many prompts of one block each, from the block `first` on."""
    blocks = list(range(first, first + count))
    for block in blocks:
        tree.insert(name.encode(), [block, block], [block], (name, session))
        tree.check()
    return blocks


def test_who_has_more_than_his_share_loses_his_own_before_others_lose_any() -> None:
    tree = RadixTree(2, caps=(4, 2))
    modest = keep(tree, "modest", 3, 0)
    greedy = keep(tree, "greedy", 9, 100)
    assert (tree.held(0, "modest"), tree.held(0, "greedy")) == (3, 9)
    assert tree.evict(5) == greedy[:5]
    assert tree.evict(3) == modest  # all are within their shares, so the oldest go
    tree.check()


def test_a_session_is_cut_before_the_other_sessions_of_its_tenant() -> None:
    tree = RadixTree(2, caps=(100, 2))
    quiet = keep(tree, "a", 2, 0, session="a/quiet")
    long = keep(tree, "a", 5, 100, session="a/long")
    assert tree.evict(4) == long[:3] + quiet[:1]
    assert (tree.held(0, "a"), tree.held(1, "a/long"), tree.held(1, "a/quiet")) == (3, 2, 1)


def test_the_furthest_beyond_his_share_goes_first() -> None:
    tree = RadixTree(2, caps=(2, 100))
    a, b = keep(tree, "a", 4, 0), keep(tree, "b", 6, 100)
    assert sorted(tree.evict(6)) == sorted(a[:2] + b[:4])
    assert tree.held(0, "a") == tree.held(0, "b") == 2


def test_what_is_in_use_is_not_taken_from_anybody() -> None:
    tree = RadixTree(2, caps=(1, 100))
    (other,) = keep(tree, "other", 1, 0)
    insertion = tree.insert(b"a", [1, 2, 3, 4], [7, 8], ("a", ""))
    tree.lock(insertion.node)
    assert tree.evict(1) == [other]
    assert tree.evict(1) == []
    tree.unlock(insertion.node)
    assert tree.evict(1) == [8]
    tree.check()


def test_nobody_owns_what_has_no_name() -> None:
    tree = RadixTree(2, caps=(1, 1))
    tree.insert(b"", [1, 2, 3, 4], [7, 8], ("", ""))
    tree.insert(b"a", [1, 2], [9], ("a", ""))
    assert tree.evict(1) == [8]
    tree.check()


def test_the_queues_do_not_grow_with_what_has_gone() -> None:
    tree = RadixTree(2, caps=(10, 100))
    for first in range(0, 2000, 5):
        keep(tree, "a", 5, first)
        tree.evict(5)
    assert len(tree._everybody._queue) < 50 and not tree._owners
