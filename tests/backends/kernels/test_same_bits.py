"""A kernel that was just compiled says what one says that comes from disk, to the last bit.

Otherwise the first start after an update would answer in another way than the later ones, and ranks that start
together not alike.
"""

import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from backends import kernels
from backends.kernels.vectors import LANES, dot

SCRIPT = Path(__file__).with_name("every_kernel.py")
MAXIMA = {"nnan", "nsz"}  # which change no number that is found


class Digests(msgspec.Struct):
    compiled: int
    digests: dict[str, str]


def run(groups: str, cache: Path) -> Digests:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *groups.split()],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=Digests)


@pytest.mark.timeout(1700)
@pytest.mark.parametrize("groups", ["rows products", pytest.param("attention", marks=pytest.mark.slow)])
def test_compiled_and_loaded_kernels_agree(groups: str, tmp_path: Path) -> None:
    compiled, loaded = run(groups, tmp_path), run(groups, tmp_path)
    assert compiled.compiled > 0 and loaded.compiled == 0
    assert compiled.digests == loaded.digests


def dispatchers() -> Iterator[tuple[str, Any]]:
    for module in pkgutil.iter_modules(kernels.__path__, "backends.kernels."):
        if "triton" in module.name or module.name.endswith("cuda"):
            continue
        for name, found in vars(importlib.import_module(module.name)).items():
            if isinstance(found, Dispatcher):
                yield f"{module.name}.{name}", found


def test_no_kernel_may_round_otherwise_than_it_is_written() -> None:
    """What LLVM makes of a sum in any order depends on what it is compiled into."""
    freedoms = {name: found.targetoptions["fastmath"] for name, found in dispatchers()}
    assert len(freedoms) > 40
    free = {name: freedom for name, freedom in freedoms.items() if freedom}
    assert all("largest" in name for name in free)
    assert all(set(freedom) <= MAXIMA for freedom in free.values())


@pytest.mark.parametrize("count", [1, LANES - 1, LANES, LANES + 1, 5 * LANES + 7])
def test_dot_reads_all_and_nothing_else(count: int) -> None:
    noise = np.random.default_rng(count)
    a, b = noise.integers(-50, 50, (2, count + 3)).astype(np.float32)
    a[count:] = np.nan
    assert dot(a[:count], b) == a[:count] @ b[:count]  # small integers: nothing is rounded


def test_dot_adds_up_in_lanes() -> None:
    """One large number hides what its own lane adds to it, and nothing of the others."""
    a = np.ones(4 * LANES, np.float32)
    a[0] = 2.0**25
    others = 4 * (LANES - 1)
    assert dot(a, np.ones_like(a)) == np.float32(2.0**25 + others)
