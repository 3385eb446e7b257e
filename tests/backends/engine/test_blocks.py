import pytest

from backends.engine.blocks import BlockPool


def test_every_block_is_given_out_once() -> None:
    pool = BlockPool(5)
    blocks = pool.allocate(2) + pool.allocate(3)
    assert sorted(blocks) == [0, 1, 2, 3, 4]
    assert pool.free == 0
    pool.check()


def test_more_than_are_free_is_an_error_and_gives_none() -> None:
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="3 blocks wanted, 2 are free"):
        pool.allocate(3)
    assert pool.free == 2
    pool.check()


def test_the_last_one_freed_is_the_next_given_out() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(4)
    pool.release(blocks[1:3])
    assert pool.allocate(1) == [blocks[2]]


@pytest.mark.parametrize("block", [1, -1, 2])
def test_what_is_not_given_out_cannot_be_freed(block: int) -> None:
    pool = BlockPool(2)
    assert pool.allocate(1) == [0]
    with pytest.raises(ValueError, match="not given out"):
        pool.release([block])


def test_freeing_twice_is_an_error() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(ValueError, match="not given out"):
        pool.release(blocks)
    pool.check()


def test_a_pool_without_blocks_is_an_error() -> None:
    with pytest.raises(ValueError, match="blocks"):
        BlockPool(0)
