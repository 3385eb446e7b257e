"""What this machine's CPU has instructions for, told without torch, so that gateway and engine agree on it."""

import functools
from pathlib import Path

# x86's AVX512_BF16 and AMX-BF16, Arm's FEAT_BF16, as Linux names them (arch/x86/include/asm/cpufeatures.h and
# Documentation/arch/arm64/elf_hwcaps.rst). Elsewhere nothing is known, so that there are none.
BFLOAT16 = frozenset(["avx512_bf16", "amx_bf16", "bf16"])


@functools.cache
def cpu_has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 without widening it first."""
    return not BFLOAT16.isdisjoint(_flags(Path("/proc/cpuinfo")))


@functools.cache
def cpu_has_avx2() -> bool:
    """Whether this CPU has the instructions for products of 4-bit weights, see `backends.kernels.int4`."""
    return "avx2" in _flags(Path("/proc/cpuinfo"))


def auto_dtype(device: str) -> str:
    """What `dtype: auto` stands for: bfloat16, but for CPUs without instructions for it, where it is slower than
    float32. `device`: cpu, cuda or cuda:N."""
    return "bfloat16" if not device.startswith("cpu") or cpu_has_bfloat16() else "float32"


def _flags(cpuinfo: Path) -> set[str]:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return set()
    named = (line.partition(":") for line in lines)
    return {
        flag for name, _, flags in named if name.strip() in ("flags", "Features") for flag in flags.split()
    }
