"""What every benchmark prints: a table for people, JSON for machines.

A ratio above 1 means that ours is better. Ours and the peer run as interleaved pairs, since the speed of a
shared machine drifts; the median of the pairs' ratios counts, and its interval is the range of the middle half.
"""

import argparse
import os
import platform
from collections.abc import Callable, Collection
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import msgspec


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One case. `ours` and `peer` are medians in `unit`; `interval` is that of `ratio`."""

    case: str
    ours: float
    peer: float
    peer_name: str
    unit: str
    ratio: float
    interval: tuple[float, float] | None = None
    details: dict[str, Any] = {}


class Report(msgspec.Struct, kw_only=True):
    name: str
    machine: dict[str, Any]
    rows: list[Row]


def paired(
    case: str,
    pairs: list[tuple[float, float]],
    *,
    peer_name: str,
    unit: str,
    higher_is_better: bool = True,
    details: dict[str, Any] | None = None,
) -> Row:
    """A row from (ours, peer) pairs that ran one right after the other."""
    ratios = [ours / peer if higher_is_better else peer / ours for ours, peer in pairs]
    quarter = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else [ratios[0]] * 3
    return Row(
        case=case,
        ours=median(ours for ours, _ in pairs),
        peer=median(peer for _, peer in pairs),
        peer_name=peer_name,
        unit=unit,
        ratio=median(ratios),
        interval=(quarter[0], quarter[2]),
        details=details or {},
    )


def machine() -> dict[str, Any]:
    """The processor as the kernel names it, and how many of them this process may use."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],  # other work on the machine makes every figure worth less
    }


def arguments(description: str, *, threads: int | None = None) -> argparse.ArgumentParser:
    """What all benchmarks can be told. `threads`: how many compute unless told, where that can be."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; ends within five minutes")
    parser.add_argument("--json", type=_writable, metavar="FILE", help="write the figures to this file")
    if threads is not None:
        parser.add_argument(
            "--threads", type=positive, default=threads, help="how many compute; %(default)s unless told"
        )
    return parser


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option: a whole number, none smaller."""

    def number(text: str) -> int:
        try:
            if (found := int(text)) >= least:
                return found
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")

    return number


positive = at_least(1)


def listed(names: Collection[str]) -> Callable[[str], list[str]]:
    """The type of an option: some of these, with commas between."""

    def chosen(text: str) -> list[str]:
        found = text.split(",")
        for name in found:
            if name not in names:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(names)}")
        return found

    return chosen


def _writable(text: str) -> Path:
    """A file for the figures, known to be possible before they are measured."""
    file = Path(text)
    if file.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    if not file.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {file.parent}")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written")
    return file


def publish(report: Report, file: Path | None) -> None:
    """Print the table, and write the JSON where one is wanted."""
    header = ("case", "ours", "peer", "unit", "ratio", "interval", "against")
    lines = [header, *(_cells(row) for row in report.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    print(f"{report.name} on {report.machine['processor']}, {report.machine['cores']} cores")
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for row in report.rows:
        if row.details:
            print(f"{row.case}: " + ", ".join(f"{key} {value}" for key, value in row.details.items()))
    if file is not None:
        write(report, file)


def write(report: Report, file: Path) -> None:
    """The JSON alone."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))


def _cells(row: Row) -> tuple[str, ...]:
    low, high = row.interval or (row.ratio, row.ratio)
    return (
        row.case,
        f"{row.ours:.4g}",
        f"{row.peer:.4g}",
        row.unit,
        f"{row.ratio:.2f}",
        f"{low:.2f}-{high:.2f}",
        row.peer_name,
    )
