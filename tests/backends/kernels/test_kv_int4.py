"""Keys and values in four bits: how far they are off, what is kept exactly, and what never comes out."""

import pytest
import torch

from backends.kernels.kv_int4 import GROUP, decode, encode, record_bytes
from backends.kernels.layout import KVCache, Layout, Span
from backends.kernels.reference import Kernels

ROUNDED = 2.0**-8  # of bfloat16, of a number


@pytest.mark.parametrize("head_dim", [20, 32, 64, 80])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_a_number_comes_back_within_half_a_step_of_its_own_group(
    head_dim: int, size: float, offset: float
) -> None:
    """The vectors and groups beside it, a thousand times louder, do not matter."""
    x = torch.randn(5, 3, head_dim) + offset
    x[1] *= 1000
    x[:, 0, GROUP:] *= 1000
    x *= size
    records = encode(x)
    assert records.dtype == torch.uint8 and records.shape == (5, 3, record_bytes(head_dim))
    for own, back in zip(x.split(GROUP, -1), decode(records, head_dim).split(GROUP, -1), strict=True):
        steps = (own.amax(-1) - own.amin(-1)) / 15
        allowed = steps / 2 + ROUNDED * own.abs().amax(-1)
        assert ((back - own).abs().amax(-1) <= allowed).all()


def test_what_a_record_takes() -> None:
    """Five bits a number where groups are whole."""
    assert [record_bytes(size) for size in (20, 32, 64, 80, 128)] == [14, 20, 40, 52, 80]
    cache = KVCache(2, 3, 16, 4, 64, dtype=torch.uint8)
    assert cache.bytes == 2 * (2 * 3 * 16 * 4) * 40 and cache.key_scales is None
    with pytest.raises(ValueError, match="int4 holds heads of even sizes, not 15"):
        KVCache(1, 1, 16, 1, 15, dtype=torch.uint8)


def test_numbers_that_are_steps_are_kept_exactly() -> None:
    x = torch.randperm(16).float().repeat(4).view(2, 32) * 0.25 - 2
    assert torch.equal(decode(encode(x), 32), x)
    for constant in (0.0, 1.0, -96.0):
        assert torch.equal(decode(encode(torch.full((32,), constant)), 32), torch.full((32,), constant))


def test_what_a_byte_of_a_record_holds() -> None:
    """By the format as it is written down."""
    record = encode(torch.arange(16.0).repeat(2)).tolist()
    assert record[:16] == [code | code << 4 for code in range(16)]
    assert record[16:] == [0x80, 0x3F, 0, 0]  # 1.0 and 0.0 in bfloat16


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_not_hidden(broken: float) -> None:
    x = torch.ones(64)
    x[40] = broken
    back = decode(encode(x), 64)
    assert back[:32].isfinite().all() and back[32:].isnan().all()


def test_attention_over_four_bits_is_near_that_over_all() -> None:
    """Two chunks, so that the second one reads what the first has written."""
    torch.manual_seed(1)
    table = torch.zeros(40, 8)
    qkv = torch.randn(40, 8 * 16)
    outs = []
    for kind in (torch.float32, torch.uint8):
        kernels = Kernels(KVCache(1, 4, 16, 2, 16, dtype=kind), table + 1, table, 4)
        chunks = [Span(0, 30, [2, 0]), Span(30, 10, [2, 0, 3])]
        parts = [
            kernels.attention(0, qkv[span.start : span.stop].clone(), Layout([span], kernels.cache))
            for span in chunks
        ]
        outs.append(torch.cat(parts))
    assert not torch.equal(*outs)
    torch.testing.assert_close(*outs, atol=0.2, rtol=0)
