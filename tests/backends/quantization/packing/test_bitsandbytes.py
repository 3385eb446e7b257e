"""Weights that bitsandbytes packed, in both directions."""

import json
from typing import Any

import bitsandbytes.functional as theirs
import pytest
import torch

from backends.quantization.packing.bitsandbytes import STATE, pack, rounded, unpack, unpack_bytes


def stored(packed: torch.Tensor, state: Any) -> dict[str, torch.Tensor]:
    """As a checkpoint holds them."""
    return {"weight": packed, **{f"weight.{name}": each for name, each in state.as_dict(packed=True).items()}}


def dequantized(packed: torch.Tensor, state: Any) -> torch.Tensor:
    """By bitsandbytes, as a single row: its kernel for AVX-512 begins a block anew with each row, its packer does
    not."""
    shape, state.shape = state.shape, (1, state.shape.numel())
    return theirs.dequantize_4bit(packed, state).view(shape)


@pytest.mark.parametrize("type", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("shape", "block"), [((48, 160), 64), ((520, 64), 64), ((32, 100), 128)])
def test_weights_of_bitsandbytes(type: str, nested: bool, shape: tuple[int, int], block: int) -> None:
    weight = torch.randn(shape)
    packed, state = theirs.quantize_4bit(weight, blocksize=block, quant_type=type, compress_statistics=nested)
    back = unpack(stored(packed, state)).dequantized()
    torch.testing.assert_close(back, dequantized(packed, state), rtol=1e-6, atol=1e-6)


def test_other_types_may_hold_the_bytes() -> None:
    weight = torch.randn(8, 64)
    packed, state = theirs.quantize_4bit(weight, quant_type="nf4", quant_storage=torch.bfloat16)
    back = unpack(stored(packed, state)).dequantized()
    torch.testing.assert_close(back, dequantized(packed, state))


def test_bitsandbytes_reads_what_we_pack() -> None:
    weight = torch.randn(40, 96)
    ours = rounded(weight)
    packed = pack(ours, "float32")
    expected, state = theirs.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    assert torch.equal(packed["weight"], expected)
    assert {
        name.removeprefix("weight."): each for name, each in packed.items() if name != "weight"
    }.keys() == (state.as_dict(packed=True).keys())
    state_of_ours = theirs.QuantState.from_dict(
        {name.removeprefix("weight."): each for name, each in packed.items() if name != "weight"},
        torch.device("cpu"),
    )
    torch.testing.assert_close(dequantized(packed["weight"], state_of_ours), ours.dequantized())


def test_eight_bits() -> None:
    weight = torch.randn(24, 64)
    integers, scales, _ = theirs.int8_vectorwise_quant(weight.half())
    back = unpack_bytes({"weight": integers, "SCB": scales})
    torch.testing.assert_close(back, theirs.int8_vectorwise_dequant(integers, scales), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("missing", ["shape", "blocksize", "nested_offset"])
def test_a_state_without_what_is_needed_is_refused(missing: str) -> None:
    packed, state = theirs.quantize_4bit(torch.randn(8, 64), quant_type="nf4", compress_statistics=True)
    tensors = stored(packed, state)
    said = json.loads(bytes(tensors[f"{STATE}nf4"].tolist()))
    del said[missing]
    tensors[f"{STATE}nf4"] = torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)
    with pytest.raises(ValueError, match=f"quant_state: {missing} is missing"):
        unpack(tensors)
    del tensors[f"{STATE}nf4"]
    with pytest.raises(ValueError, match=r"weight\.quant_state\.bitsandbytes__nf4 is missing"):
        unpack(tensors)


def test_scales_that_do_not_fit_are_refused() -> None:
    packed, state = theirs.quantize_4bit(torch.randn(8, 64), quant_type="nf4")
    tensors = stored(packed, state)
    tensors["weight.absmax"] = tensors["weight.absmax"][:-1]
    with pytest.raises(ValueError, match="7 scales do not fit 8 x 64 weights in blocks of 64"):
        unpack(tensors)
