"""Integers in words of 32 bits, the first lowest."""

import pytest
import torch

from backends.quantization.packing.words import pack_words, unpack_words


def test_the_first_integer_is_lowest() -> None:
    values = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 15]], dtype=torch.uint8)
    assert pack_words(values, 4).tolist() == [[0xF7654321 - (1 << 32)]]
    assert pack_words(values, 8).tolist() == [[0x04030201, 0x0F070605]]
    assert pack_words(values[:, :3] & 3, 2).tolist() == [[0b111001]]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("count", [32, 33, 47])
def test_there_and_back(bits: int, count: int) -> None:
    values = torch.randint(0, 1 << bits, (3, count), dtype=torch.uint8)
    words = pack_words(values, bits)
    assert words.dtype == torch.int32 and words.shape == (3, -(-count * bits // 32))
    assert torch.equal(unpack_words(words, bits, count), values)


def test_a_view_that_is_transposed_is_read_as_it_is_seen() -> None:
    values = torch.randint(0, 16, (8, 24), dtype=torch.uint8)
    words = pack_words(values.T.contiguous(), 4).T
    assert torch.equal(unpack_words(words.T, 4).T, values)


@pytest.mark.parametrize("count", [8, 17])
def test_a_count_that_does_not_fit_the_words_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"2 words hold 16 integers of 4 bits, not {count}"):
        unpack_words(torch.zeros(1, 2, dtype=torch.int32), 4, count)


@pytest.mark.parametrize("bits", [0, 3, 5, 16])
def test_bits_that_reach_over_words_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match=f"integers of {bits} bits are not supported, only of 2, 4, 8"):
        unpack_words(torch.zeros(1, 3, dtype=torch.int32), bits)
