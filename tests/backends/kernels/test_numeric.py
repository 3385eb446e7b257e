from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from backends.kernels.numeric import exp, narrow, widen
from backends.kernels.team import jit

Array = NDArray[Any]


@jit
def exponentials(x: Array) -> Array:
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = exp(x[i])
    return out


@jit
def widened(x: Array) -> Array:
    out = np.empty(len(x), np.float32)
    for i in range(len(x)):
        out[i] = widen(x[i])
    return out


@jit
def narrowed(x: Array, out: Array) -> None:
    for i in range(len(x)):
        out[i] = narrow(x[i], out[i])


def test_exp_is_within_two_ulps() -> None:
    x = np.concatenate([np.linspace(-87, 88, 200_001), np.linspace(-1e-3, 1e-3, 2001)]).astype(np.float32)
    true = np.exp(x.astype(np.float64))
    assert np.max(np.abs(exponentials(x) - true) / true) < 2.4e-7


def test_exp_of_the_extreme_stays_finite_and_nan_stays_nan() -> None:
    out = exponentials(np.array([-np.inf, -1e30, -100, 0, 100, np.inf, np.nan], np.float32))
    assert np.all(out[:3] < 1.7e-38) and np.all(out[:3] >= 0)
    assert out[3] == 1
    assert np.all(np.isfinite(out[4:6])) and np.all(out[4:6] > 1e38)
    assert np.isnan(out[6])


def test_every_bfloat16_widens_and_comes_back() -> None:
    bits = np.arange(-(2**15), 2**15, dtype=np.int16)
    wide = torch.from_numpy(bits).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(widened(bits).view(np.int32), wide.view(np.int32))
    back = np.empty_like(bits)
    narrowed(wide, back)
    number = ~np.isnan(wide)
    np.testing.assert_array_equal(back[number], bits[number])


def test_narrow_rounds_as_torch_does() -> None:
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0)) * 1e3
    halves = (torch.randn(1000).bfloat16().view(torch.int16).int() << 16 | 0x8000).view(torch.float32)
    # The last one overflows.
    x = torch.cat([x, halves, torch.tensor([torch.inf, -torch.inf, torch.nan, 3.4e38])])
    out = np.empty(len(x), np.int16)
    narrowed(x.numpy(), out)
    ours, theirs = torch.from_numpy(out).view(torch.bfloat16), x.bfloat16()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_float32_passes_unchanged() -> None:
    x = np.array([0.1, -0.0, np.inf], np.float32)
    out = np.empty_like(x)
    narrowed(widened(x), out)
    np.testing.assert_array_equal(out.view(np.int32), x.view(np.int32))
