"""The first thing to run where there is a GPU: is every kernel right there, how near is it to what the hardware can
do, and what does a model served by the engine come to.

Each kernel is checked against plain torch and measured against the memory's bandwidth or the rate of the matrix units,
whichever needs longer; a ratio of 1 is that limit, which only copies come near. What belongs together runs in a process
of its own: one that fails or hangs is a row that says so. `--interpret` runs all of it at tiny shapes on a CPU, under
Triton's interpreter; its figures mean nothing.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from backends.catalogue import CATALOGUE
from benchmarks.report import Report, Row, arguments, machine, publish, write

# Of `benchmarks.gpu_kernels`, which loads Triton.
FAMILIES = ("products", "attention", "rows", "rotation", "sampling")
TINY = "random-tiny"
PATIENCE = {False: 1800.0, True: 240.0}  # seconds for one process, by --quick
NO_GPU = 2


@dataclass(frozen=True, slots=True)
class Part:
    """What one process does."""

    module: str
    subject: str

    def rows(self, interpret: bool, quick: bool) -> list[Row]:
        """Its rows, and where it did not come to its end, one that says how it ended."""
        environment = os.environ | ({"TRITON_INTERPRET": "1"} if interpret else {})
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.json"
            command = [sys.executable, "-m", self.module, self.subject, "--rows", str(file)]
            command += ["--device", "cpu", "--tiny"] if interpret else []
            command += ["--quick"] if quick else []
            try:
                code = subprocess.run(command, env=environment, timeout=PATIENCE[quick]).returncode
                ended = [self._ended(f"ended with code {code}")] if code else []
            except subprocess.TimeoutExpired:
                ended = [self._ended(f"took longer than {PATIENCE[quick]:.0f} s")]
            found = msgspec.json.decode(file.read_bytes(), type=list[Row]) if file.exists() else []
            return found + ended

    def _ended(self, reason: str) -> Row:
        return Row(
            case=self.subject, ours=0.0, peer=0.0, peer_name="FAILED", unit="-", ratio=0.0,
            details={"failed": reason},
        )  # fmt: skip


def parts(models: list[str], interpret: bool) -> Iterator[Part]:
    """The kernels, then the models: those that were asked for, or else those of the catalogue that are pulled."""
    for family in FAMILIES:
        yield Part("benchmarks.gpu_kernels", family)
    present = [entry.name for entry in CATALOGUE.values() if entry.present]
    for model in [TINY] if interpret else models or present:
        yield Part("benchmarks.gpu_serving", model)


def missing_gpu() -> str | None:
    """Why there is none, in words."""
    import torch

    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA; make install TORCH='torch>=2.11' brings another"
    return "torch finds no NVIDIA GPU here"


def gpu_machine() -> dict[str, object]:
    import torch

    device = torch.cuda.get_device_properties(0)
    return machine() | {
        "gpu": device.name,
        "compute_capability": f"{device.major}.{device.minor}",
        "gpu_memory_gb": round(device.total_memory / 1e9, 1),
        "torch": torch.__version__,
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--interpret", action="store_true", help="tiny shapes on a CPU; shows that all of this runs"
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        help="serve this one, a name of the catalogue, a folder or random-7b; may be repeated",
    )
    options: argparse.Namespace = parser.parse_args()
    reason = None if options.interpret else missing_gpu()
    if reason is not None:
        print(
            f"gpu: no GPU to run on: {reason}; --interpret runs the same at tiny shapes on a CPU",
            file=sys.stderr,
        )
        sys.exit(NO_GPU)
    report = Report(name="gpu", machine=machine() if options.interpret else gpu_machine(), rows=[])
    for part in parts(options.model, options.interpret):
        add(part, report, options)
    publish(report, options.json)
    wrong = [row.case for row in report.rows if row.unit == "-"]
    if wrong:
        print(f"gpu: {len(wrong)} of {len(report.rows)} failed: " + "; ".join(wrong), file=sys.stderr)
        sys.exit(1)


def add(part: Part, report: Report, options: argparse.Namespace) -> None:
    """What a part finds is in the file at once: a machine may be lent for some minutes only."""
    started = time.perf_counter()
    rows = part.rows(options.interpret, options.quick)
    report.rows += rows
    if options.json is not None:
        write(report, options.json)
    wrong, seconds = sum(row.unit == "-" for row in rows), time.perf_counter() - started
    print(f"gpu: {part.subject}: {len(rows)} cases, {wrong} failed, {seconds:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
