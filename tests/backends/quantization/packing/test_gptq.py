"""The words that GPTQModel 7.7.0 makes of known weights (`pack_original`), and back."""

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from backends.quantization.grouped import Grouped
from backends.quantization.packing import gptq

# Of each width: the words of the weights, of the zeros in version 2 and in version 1.
DIGESTS = {
    4: ("bf08639b08c76a8e", "4bf3f6bc91286da5", "3a0193b704bce8ea"),
    8: ("b3f529621ad64c92", "d5ba3f8a9e2e27c8", "a13c221d8b949580"),
    2: ("205c44a0be305583", "651945792dc66ee8", "069c45c9f9a8b76c"),
}
SCALES, NEIGHBOURS, ORDERED = "33e8b1b343310780", "fe5ef84623360b7b", "6e7053adf13aa9dc"
EVERY_FIFTH = (torch.arange(64) * 5) % 64 // 32


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("bits", DIGESTS)
def test_known_weights_become_the_words_of_gptqmodel(bits: int, known: Callable[..., Grouped]) -> None:
    weights, second, first = DIGESTS[bits]
    for version, zeros in ((2, second), (1, first)):
        packed = gptq.pack(known(bits), version)
        assert [digest(packed[name]) for name in gptq.NAMES] == [weights, zeros, SCALES, NEIGHBOURS]
    assert digest(gptq.pack(known(bits, EVERY_FIFTH))["g_idx"]) == ORDERED


def test_some_words() -> None:
    """Columns 0 to 7 of one channel in a word; zeros less one."""
    integers = torch.arange(8, dtype=torch.uint8).expand(8, 8)
    weight = Grouped(4, integers, torch.ones(8, 1), torch.arange(1, 9, dtype=torch.uint8)[:, None])
    packed = gptq.pack(weight)
    assert packed["qweight"].tolist() == [[0x76543210] * 8]
    assert packed["qzeros"].tolist() == [[0x76543210]]
    assert gptq.pack(weight, 2)["qzeros"].tolist() == [[0x87654321 - (1 << 32)]]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("ordered", [False, True])
def test_there_and_back(bits: int, version: int, ordered: bool, drawn: Callable[..., Grouped]) -> None:
    groups = torch.randperm(96) // 32 if ordered else None
    weight = replace(drawn(bits), column_groups=groups)
    back = gptq.unpack(gptq.pack(weight, version), bits, version)
    assert torch.equal(back.dequantized(), weight.dequantized())
    assert (back.column_groups is None) != ordered


def test_without_an_order_groups_are_neighbours(drawn: Callable[..., Grouped]) -> None:
    weight = drawn(4)
    packed = gptq.pack(weight)
    del packed["g_idx"]
    assert torch.equal(gptq.unpack(packed, 4).dequantized(), weight.dequantized())


def test_a_zero_of_0_that_is_stored_as_15_is_0_again() -> None:
    stored = {"qweight": torch.zeros(1, 8, dtype=torch.int32), "scales": torch.ones(1, 8)}
    back = gptq.unpack({**stored, "qzeros": torch.tensor([[-1]], dtype=torch.int32)}, 4, 1)
    assert back.zeros.tolist() == [[0]] * 8


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_zero_of_0_that_borrowed_from_the_next(bits: int, drawn: Callable[..., Grouped]) -> None:
    """As GPTQModel makes version 1 of version 2: it subtracts a word of ones."""
    weight = drawn(bits)
    weight.zeros[::3] = 0
    packed = gptq.pack(weight, 2)
    packed["qzeros"] -= {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}[bits]
    assert torch.equal(gptq.unpack(packed, bits, 1, borrows=True).zeros, weight.zeros)


def test_a_zero_of_0_is_not_written_where_readers_would_differ(drawn: Callable[..., Grouped]) -> None:
    weight = drawn(4)
    weight.zeros[3, 1] = 0
    with pytest.raises(ValueError, match="version 1 cannot hold zeros of 0; version 2 can"):
        gptq.pack(weight)
    assert torch.equal(gptq.unpack(gptq.pack(weight, 2), 4, 2).zeros, weight.zeros)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_symmetric_zeros_tell_the_version(bits: int, drawn: Callable[..., Grouped]) -> None:
    symmetric = drawn(bits, symmetric=True)
    for version in (1, 2):
        assert gptq.stored_version(gptq.pack(symmetric, version)["qzeros"], bits) == version
        assert gptq.stored_version(gptq.pack(drawn(bits), version)["qzeros"], bits) is None


def test_sizes_that_do_not_fill_words_are_refused(drawn: Callable[..., Grouped]) -> None:
    with pytest.raises(ValueError, match=r"multiples of 8, not \[30, 96\]"):
        gptq.pack(drawn(4, rows=30))
