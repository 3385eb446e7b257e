"""Checks and measures one family of kernels: `python -m benchmarks.gpu_kernels FAMILY`, a process that may fail alone.

A kernel that reads where it must not leaves a GPU's context unusable for whatever comes after it in the process.
"""

import argparse
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import torch

from backends.kernels.products import FLOAT8_SINCE
from benchmarks.gpu_kernels import FAMILIES
from benchmarks.gpu_kernels.case import Case, Setting, error
from benchmarks.gpu_kernels.clock import Clock
from benchmarks.gpu_kernels.limits import Limits, known, measured, of_data_sheet
from benchmarks.report import Row


def setting_of(device: torch.device, *, tiny: bool, quick: bool) -> Setting:
    """bfloat16 on GPUs; float32 under the interpreter, which multiplies the bit patterns of bfloat16."""
    if device.type != "cuda":
        return Setting(device, torch.float32, tiny, quick)
    has_float8 = torch.cuda.get_device_capability(device) >= FLOAT8_SINCE
    return Setting(device, torch.bfloat16, tiny, quick, has_float8)


def limits_of(setting: Setting, clock: Clock) -> Limits:
    gpu = known(torch.cuda.get_device_name(setting.device)) if setting.device.type == "cuda" else None
    if gpu is not None:
        return of_data_sheet(gpu)
    return measured(setting.device, setting.dtype, clock, tiny=setting.tiny)


def row_of(family: str, case: Case, limits: Limits, clock: Clock) -> Row:
    """A kernel that fails, or is wrong, is a row that says so."""
    name = f"{family}: {case.name} [{', '.join(case.kernels)}]"
    try:
        difference = error(*case.check())
        clock.wait()
        if not difference <= case.tolerance:
            reason = f"off by {difference:.2g} of the largest, {case.tolerance:.2g} is allowed"
            return failed(name, "WRONG", reason)
        seconds = clock.seconds(case.run)
        clock.wait()
    except Exception as problem:
        traceback.print_exc()
        return failed(name, "FAILED", f"{type(problem).__name__}: {str(problem).splitlines()[:1]}")
    least, bound = limits.seconds(case)
    return Row(
        case=name,
        ours=1e6 * seconds,
        peer=1e6 * least,
        peer_name=f"{bound}, {limits.source}",
        unit="µs",
        ratio=least / seconds,
        details={"error": f"{difference:.2g}"},
    )


def failed(name: str, how: str, reason: str) -> Row:
    return Row(
        case=name, ours=0.0, peer=0.0, peer_name=how, unit="-", ratio=0.0, details={how.lower(): reason}
    )


def rows_of(family: str, setting: Setting) -> Iterator[Row]:
    """Cases that cannot even be set up are a row, too."""
    clock = Clock(setting.device, 1 if setting.tiny else 3)
    limits = limits_of(setting, clock)
    torch.manual_seed(0)
    try:
        for case in FAMILIES[family](setting):
            yield row_of(family, case, limits, clock)
    except Exception as problem:
        traceback.print_exc()
        yield failed(f"{family}: the rest", "FAILED", f"{type(problem).__name__}: {problem}")


def keep(rows: Iterable[Row], file: Path) -> None:
    """Write all rows so far after each of them: whoever ends this process has what it has found."""
    found: list[Row] = []
    for row in rows:
        found.append(row)
        written = file.with_suffix(".new")
        written.write_bytes(msgspec.json.encode(found))
        written.replace(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=Path, required=True)
    options = parser.parse_args()
    if options.tiny:
        torch.set_num_threads(1)
    setting = setting_of(torch.device(options.device), tiny=options.tiny, quick=options.quick)
    keep(rows_of(options.family, setting), options.rows)


if __name__ == "__main__":
    main()
