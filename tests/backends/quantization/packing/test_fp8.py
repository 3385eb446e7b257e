"""8-bit floats: those of the compressed-tensors package, and DeepSeek's blocks."""

from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

from backends.quantization.packing import fp8
from backends.quantization.packing.fp8 import BLOCK_SCALE, SCALE, Float8, rounded

SHAPE = (200, 300)
PIECES = {"tensor": SHAPE, "channel": (1, 300), "block": (128, 128)}


@pytest.mark.parametrize("pieces", PIECES)
def test_values_are_those_of_the_package(pieces: str) -> None:
    weight = torch.randn(SHAPE)
    ours = rounded(weight, PIECES[pieces])
    size: dict[str, Any] = {"block_structure": [128, 128]} if pieces == "block" else {}
    weights = QuantizationArgs(num_bits=8, type="float", strategy=pieces, **size)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    scales = ours.scales.reshape(1) if pieces == "tensor" else ours.scales
    tensors = {"weight": weight, "weight_scale": scales}
    theirs = BaseCompressor.load_from_registry("float-quantized").compress(tensors, scheme)
    assert torch.equal(ours.values.view(torch.uint8), theirs["weight"].view(torch.uint8))
    back = fp8.unpack(theirs)
    assert torch.equal(back.dequantized(), ours.dequantized())
    whole = BaseCompressor.load_from_registry("float-quantized").decompress(theirs, scheme)
    torch.testing.assert_close(back.dequantized(), whole["weight"], rtol=0, atol=0)


@pytest.mark.parametrize("pieces", PIECES)
def test_there_and_back(pieces: str) -> None:
    weight = rounded(torch.randn(SHAPE), PIECES[pieces])
    packed = fp8.pack(weight)
    names = {"weight", BLOCK_SCALE if pieces == "block" else SCALE}
    assert packed.keys() == names
    assert torch.equal(fp8.unpack(packed).dequantized(), weight.dequantized())


def test_the_scale_multiplies_whatever_its_name() -> None:
    values = torch.tensor([[1.0, 2.0], [4.0, -8.0]]).to(torch.float8_e4m3fn)
    for scales in (torch.tensor(0.5), torch.tensor([0.5]), torch.tensor([[0.5], [0.5]])):
        back = fp8.unpack({"weight": values, SCALE: scales})
        assert back.dequantized().tolist() == [[0.5, 1], [2, -4]]
    assert fp8.unpack({"weight": values, BLOCK_SCALE: torch.tensor([[0.5]])}).dequantized()[1, 1] == -4


def test_a_piece_keeps_its_largest_weight() -> None:
    weight = torch.randn(4, 64) * torch.tensor([[1e-3], [1.0], [1e3], [0.0]])
    back = rounded(weight, (1, 64)).dequantized()
    torch.testing.assert_close(back.abs().amax(1), weight.abs().amax(1))
    assert (
        (back - weight).abs() <= weight.abs() / 16 + weight.abs().amax(1, keepdim=True) / 448 / 2**9
    ).all()


def test_a_small_weight_is_one_block() -> None:
    weight = rounded(torch.randn(3, 5), (128, 128))
    assert weight.scales.shape == (1, 1) and weight.dequantized().shape == (3, 5)


def test_scales_that_do_not_fit_are_refused() -> None:
    values = torch.zeros(200, 300).to(torch.float8_e4m3fn)
    with pytest.raises(
        ValueError, match=r"\[200, 300\] in pieces of \[128, 128\] needs scales \[2, 3\], not \[2, 2\]"
    ):
        fp8.unpack({"weight": values, BLOCK_SCALE: torch.ones(2, 2)})
    with pytest.raises(ValueError, match=r"needs scales \[200, 1\], not \[100, 1\]"):
        fp8.unpack({"weight": values, SCALE: torch.ones(100, 1)})
    with pytest.raises(ValueError, match=r"no reader knows pieces of \[64, 64\]"):
        fp8.pack(Float8(values, torch.ones(4, 5), (64, 64)))
