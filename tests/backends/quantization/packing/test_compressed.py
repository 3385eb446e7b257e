"""Words and bytes of the compressed-tensors package itself, in both directions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

from backends.quantization.grouped import Grouped
from backends.quantization.packing import compressed


def scheme(bits: int, symmetric: bool, groups: int, columns: int = 96) -> Any:
    size = {"strategy": "group", "group_size": columns // groups} if groups > 1 else {"strategy": "channel"}
    weights = QuantizationArgs(num_bits=bits, symmetric=symmetric, **size)
    return QuantizationScheme(targets=["Linear"], weights=weights)


def theirs(format: str, weight: Grouped, symmetric: bool) -> dict[str, torch.Tensor]:
    groups = weight.scales.shape[1]
    tensors = {"weight": weight.dequantized(), "weight_scale": weight.scales.float()}
    if not symmetric:
        tensors["weight_zero_point"] = (weight.zeros.int() - (1 << (weight.bits - 1))).to(torch.int8)
    compressor = BaseCompressor.load_from_registry(format)
    packed: dict[str, torch.Tensor] = compressor.compress(tensors, scheme(weight.bits, symmetric, groups))
    return packed


MATRIX = pytest.mark.parametrize(
    ("bits", "symmetric", "groups"),
    [(bits, symmetric, groups) for bits in (4, 8) for symmetric in (True, False) for groups in (1, 3)],
)


@MATRIX
def test_words_are_those_of_the_package(
    bits: int, symmetric: bool, groups: int, drawn: Callable[..., Grouped]
) -> None:
    """30 rows do not fill the words of the zeros."""
    weight = drawn(bits, rows=30, groups=groups, symmetric=symmetric)
    packed = theirs("pack-quantized", weight, symmetric)
    ours = compressed.pack(weight, symmetric=symmetric)
    assert ours.keys() == packed.keys()
    for name, tensor in packed.items():
        assert torch.equal(ours[name], tensor.half() if name == "weight_scale" else tensor), name
    back = compressed.unpack(packed, bits)
    assert torch.equal(back.dequantized(), weight.dequantized())


@MATRIX
def test_bytes_are_those_of_the_package(
    bits: int, symmetric: bool, groups: int, drawn: Callable[..., Grouped]
) -> None:
    weight = drawn(bits, rows=30, groups=groups, symmetric=symmetric)
    packed = theirs("int-quantized", weight, symmetric)
    ours = compressed.pack_bytes(weight, symmetric=symmetric)
    assert ours.keys() == packed.keys()
    assert torch.equal(ours["weight"], packed["weight"])
    assert torch.equal(compressed.unpack_bytes(packed).dequantized(), weight.dequantized())
    assert torch.equal(compressed.unpack_bytes(ours).dequantized(), weight.dequantized())


def test_one_scale_for_all() -> None:
    tensors = {
        "weight": torch.tensor([[-3, 2], [1, 0]], dtype=torch.int8),
        "weight_scale": torch.tensor([0.5]),
    }
    assert compressed.unpack_bytes(tensors).dequantized().tolist() == [[-1.5, 1], [0.5, 0]]
    tensors[compressed.ZERO_POINT] = torch.tensor([1], dtype=torch.int8)
    assert compressed.unpack_bytes(tensors).dequantized().tolist() == [[-2, 0.5], [0, -0.5]]


def test_zero_points_may_be_bytes(drawn: Callable[..., Grouped]) -> None:
    weight = drawn(4)
    packed = compressed.pack(weight, symmetric=False)
    packed[compressed.ZERO_POINT] = (weight.zeros.int() - 8).to(torch.int8)
    assert torch.equal(compressed.unpack(packed, 4).dequantized(), weight.dequantized())


def test_columns_may_say_their_group(drawn: Callable[..., Grouped]) -> None:
    plain = drawn(4)
    weight = Grouped(4, plain.integers, plain.scales, plain.zeros, torch.randperm(96) // 32)
    back = compressed.unpack(compressed.pack(weight, symmetric=False), 4)
    assert torch.equal(back.dequantized(), weight.dequantized())


def test_asymmetric_weights_are_not_written_as_symmetric(drawn: Callable[..., Grouped]) -> None:
    for write in (compressed.pack, compressed.pack_bytes):
        with pytest.raises(ValueError, match="have their zeros in the middle"):
            write(drawn(4), symmetric=True)
