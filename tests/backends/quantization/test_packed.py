"""The layout of the GPU kernels holds what the files' layouts hold, weight by weight."""

import pytest
import torch

from backends.quantization.grouped import Grouped
from backends.quantization.int4 import exact
from backends.quantization.int4 import rounded as four_bits
from backends.quantization.packed import (
    Packed,
    from_float8,
    from_four_bits,
    from_grouped,
    pack_nibbles,
    rounded,
    unpack_nibbles,
)
from backends.quantization.packing import awq, fp8, gptq

CHANNELS, COLUMNS = 24, 256


def grouped(bits: int, group: int, *, symmetric: bool = False, act_order: bool = False) -> Grouped:
    noise = torch.Generator().manual_seed(group + bits)
    groups, most = COLUMNS // group, 1 << bits
    integers = torch.randint(0, most, (CHANNELS, COLUMNS), generator=noise).to(torch.uint8)
    zeros = torch.randint(1, most, (CHANNELS, groups), generator=noise).to(torch.uint8)
    if symmetric:
        zeros.fill_(most // 2)
    scales = torch.rand(CHANNELS, groups, generator=noise).half()
    neighbours = torch.arange(COLUMNS) // group
    scattered = neighbours[torch.randperm(COLUMNS, generator=noise)] if act_order else None
    return Grouped(bits, integers, scales, zeros, scattered)


def in_file_order(weight: Packed) -> torch.Tensor:
    weights = weight.dequantized()
    if weight.order is None:
        return weights
    return torch.empty_like(weights).index_copy_(1, weight.order, weights)


def test_nibbles_of_both_halves_of_a_block_share_bytes() -> None:
    """Byte 3 of the second block: its columns 3 and 19."""
    integers = torch.arange(64, dtype=torch.uint8)[None] % 16
    integers[0, 32 + 3], integers[0, 32 + 19] = 5, 12
    packed = pack_nibbles(integers)
    assert packed.shape == (1, 32)
    assert packed[0, 16 + 3] == 5 | (12 << 4)
    assert torch.equal(unpack_nibbles(packed), integers)


def test_columns_that_are_no_whole_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="40 columns are not a multiple of 32"):
        pack_nibbles(torch.zeros(2, 40, dtype=torch.uint8))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128, COLUMNS])
@pytest.mark.parametrize("symmetric", [True, False])
def test_grouped_weights_stay_what_they_are(bits: int, group: int, symmetric: bool) -> None:
    weight = grouped(bits, group, symmetric=symmetric)
    packed = from_grouped(weight)
    assert torch.equal(packed.dequantized(), weight.dequantized())
    assert (packed.zeros is None) is symmetric
    assert (packed.channels, packed.columns, packed.group) == (CHANNELS, COLUMNS, group)
    assert packed.values.nbytes == CHANNELS * COLUMNS * bits // 8


def test_a_file_of_awq_is_repacked() -> None:
    weight = grouped(4, 128)
    assert torch.equal(from_grouped(awq.unpack(awq.pack(weight))).dequantized(), weight.dequantized())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("act_order", [False, True])
def test_a_file_of_gptq_is_repacked(bits: int, version: int, act_order: bool) -> None:
    weight = grouped(bits, 64, act_order=act_order)
    packed = from_grouped(gptq.unpack(gptq.pack(weight, version), bits, version))
    assert torch.equal(in_file_order(packed), weight.dequantized())
    assert (packed.order is not None) is act_order


def test_act_order_is_a_permutation_of_the_inputs() -> None:
    weight = grouped(4, 32, act_order=True)
    packed = from_grouped(weight)
    x = torch.randn(3, COLUMNS, dtype=torch.float64)
    assert packed.order is not None
    permuted = x[:, packed.order] @ packed.dequantized().double().T
    torch.testing.assert_close(permuted, x @ weight.dequantized().double().T)


def test_what_the_kernels_lack_is_refused() -> None:
    with pytest.raises(ValueError, match="weights of 2 bits"):
        from_grouped(grouped(2, 32))
    with pytest.raises(ValueError, match="256 columns in 16 groups"):
        from_grouped(grouped(4, 16))
    uneven = torch.zeros(COLUMNS, dtype=torch.int64)
    uneven[0] = 1
    weight = grouped(4, 128)
    with pytest.raises(ValueError, match="g_idx: its groups have 1 to 255 columns"):
        from_grouped(Grouped(4, weight.integers, weight.scales, weight.zeros, uneven))


@pytest.mark.parametrize("group", [32, 128, COLUMNS])
@pytest.mark.parametrize("symmetric", [True, False])
def test_four_bits_of_a_cpu_become_the_groups_and_zeros_that_they_came_from(
    group: int, symmetric: bool
) -> None:
    weight = grouped(4, group, symmetric=symmetric, act_order=True)
    direct, through = from_grouped(weight), from_four_bits(exact(weight))
    assert through.minima is None and through.nbytes == direct.nbytes and through.group == group
    assert torch.equal(in_file_order(through), weight.dequantized())


def test_four_bits_with_minima_stay_what_they_are() -> None:
    weight = four_bits(torch.randn(CHANNELS, COLUMNS))
    packed = from_four_bits(weight)
    torch.testing.assert_close(packed.dequantized(), weight.dequantized(), rtol=0, atol=0)
    assert packed.scales.dtype == torch.float16  # these were rounded to it


@pytest.mark.parametrize("block", [(CHANNELS, COLUMNS), (1, COLUMNS), (128, 128), (16, 96)])
def test_float8_stays_what_it_is(block: tuple[int, int]) -> None:
    """Blocks that the weights do not fill too."""
    weight = fp8.rounded(torch.randn(CHANNELS, COLUMNS), block)
    assert torch.equal(from_float8(weight).dequantized(), weight.dequantized())


def test_float8_that_is_no_number_is_refused() -> None:
    weight = fp8.rounded(torch.randn(CHANNELS, COLUMNS), (1, COLUMNS))
    weight.values[3, 4] = torch.nan
    with pytest.raises(ValueError, match="float8: a weight is not a number"):
        from_float8(weight)
    with pytest.raises(ValueError, match="blocks of 40 columns"):
        from_float8(fp8.rounded(torch.randn(CHANNELS, COLUMNS), (16, 40)))


def test_whole_weights_are_rounded_to_the_nearest_of_their_channel() -> None:
    weight = torch.randn(CHANNELS, COLUMNS)
    weight[5] = 0
    packed = rounded(weight)
    assert packed.values.abs().amax() == 127
    assert ((packed.dequantized() - weight).abs() <= packed.scales.T * 0.501).all()
    weight[0, 0] = torch.inf
    with pytest.raises(ValueError, match="int8: a weight is not finite"):
        rounded(weight)


def test_it_counts_its_bytes_and_moves_as_one() -> None:
    packed = from_grouped(grouped(4, 64, act_order=True))
    assert packed.nbytes == CHANNELS * COLUMNS // 2 + CHANNELS * 4 * (2 + 1)
    moved = packed.to("meta")
    assert moved.values.is_meta and moved.order is not None and moved.order.is_meta and moved.minima is None
