import pytest

from prefixcache.tokens import WIDTH, pack


def test_each_id_becomes_four_bytes_the_lowest_first() -> None:
    assert pack([1, 0x01020304]) == bytes([1, 0, 0, 0, 4, 3, 2, 1])
    assert len(pack(range(10))) == 10 * WIDTH


@pytest.mark.parametrize("id", [-1, 2**32])
def test_an_id_that_does_not_fit_is_an_error(id: int) -> None:
    with pytest.raises(OverflowError):
        pack([id])
