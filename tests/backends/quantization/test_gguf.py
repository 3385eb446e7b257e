"""Every block format against the gguf package's own dequantisation, bit for bit."""

import gguf
import numpy as np
import pytest
import torch

from backends.quantization.gguf import CHUNK, FORMATS, dequantize, row_bytes

BLOCKS = [name for name, format in FORMATS.items() if format.expand]


def random_rows(type: str, rows: int, cols: int) -> np.ndarray:
    """Bytes that mean finite numbers: random integers everywhere, and sane halves where scales lie."""
    random = np.random.default_rng(7)
    raw = random.integers(0, 256, (rows, row_bytes(type, cols)), dtype=np.uint8)
    if FORMATS[type].expand is None:
        numbers = torch.from_numpy(random.standard_normal((rows, cols), dtype=np.float32))
        return np.asarray(numbers.to(FORMATS[type].dtype).view(torch.uint8).numpy())
    blocks = raw.reshape(-1, FORMATS[type].bytes)
    for at in {"Q6_K": [208], "Q4_0": [0], "Q5_0": [0], "Q8_0": [0]}.get(type, [0, 2]):
        scales = random.standard_normal((len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    return raw


def reference(raw: np.ndarray, type: str) -> np.ndarray:
    return np.asarray(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[type]))


@pytest.mark.parametrize("type", FORMATS)
def test_equals_the_reference_bit_for_bit(type: str) -> None:
    raw = random_rows(type, rows=6, cols=1536)
    got = dequantize(torch.from_numpy(raw), type, torch.float32)
    assert got.shape == (6, 1536)
    np.testing.assert_array_equal(got.numpy().view(np.uint32), reference(raw, type).view(np.uint32))


@pytest.mark.parametrize("type", BLOCKS)
def test_any_bytes_expand_as_the_reference_does(type: str) -> None:
    """Scales that are infinite, not a number, or subnormal come out as the reference has them."""
    raw = np.random.default_rng(11).integers(0, 256, (64, FORMATS[type].bytes * 4), dtype=np.uint8)
    got = dequantize(torch.from_numpy(raw), type, torch.float32).numpy()
    with np.errstate(invalid="ignore", over="ignore"):
        np.testing.assert_array_equal(got, reference(raw, type))


def test_chunks_do_not_show() -> None:
    rows = 3 * CHUNK // 1536 + 5
    raw = random_rows("Q4_K", rows=rows, cols=1536)
    got = dequantize(torch.from_numpy(raw), "Q4_K", torch.float32)
    np.testing.assert_array_equal(got.numpy(), reference(raw, "Q4_K"))


def test_bfloat16_is_the_rounded_float32() -> None:
    raw = torch.from_numpy(random_rows("Q6_K", rows=3, cols=512))
    assert torch.equal(
        dequantize(raw, "Q6_K", torch.bfloat16), dequantize(raw, "Q6_K", torch.float32).to(torch.bfloat16)
    )


def test_a_vector_and_a_stack_keep_their_shape() -> None:
    raw = torch.from_numpy(random_rows("Q8_0", rows=6, cols=64))
    whole = dequantize(raw, "Q8_0", torch.float32)
    assert torch.equal(dequantize(raw[1], "Q8_0", torch.float32), whole[1])
    assert torch.equal(dequantize(raw.view(2, 3, -1), "Q8_0", torch.float32), whole.view(2, 3, 64))


def test_refuses_what_it_cannot_read() -> None:
    with pytest.raises(ValueError, match="tensor type IQ2_XXS is not supported"):
        dequantize(torch.zeros(1, 66, dtype=torch.uint8), "IQ2_XXS", torch.float32)
    with pytest.raises(ValueError, match="do not hold whole Q4_0 blocks of 18"):
        dequantize(torch.zeros(1, 19, dtype=torch.uint8), "Q4_0", torch.float32)
    with pytest.raises(ValueError, match="not whole Q4_K blocks of 256"):
        row_bytes("Q4_K", 300)
