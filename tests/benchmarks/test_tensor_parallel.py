"""The benchmark of ranks: what it says that they exchange is what they do."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from backends.models.registry import decoder_config
from benchmarks.report import Report
from benchmarks.tensor_parallel import CONFIG, exchanged

ROOT = Path(__file__).parents[2]


def test_what_two_ranks_hand_over_by_hand() -> None:
    """Width 512, 8 layers, an MLP of 1536, 8192 ids; 4 bytes each; one token, and all of its logits."""
    config = decoder_config(CONFIG)
    assert exchanged(config, 1, 1, 4, integers=False) == 4 * (512 + 8 * 2 * 512 + 4096)
    assert exchanged(config, 1, 1, 4, integers=True) == 4 * (512 + 8 * (256 + 256 + 768 + 256) + 4096)
    assert exchanged(config, 5, 0, 2, integers=False) == 2 * 5 * (512 + 8 * 2 * 512)


@pytest.mark.slow
def test_it_is_what_is_counted(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.tensor_parallel",
        "--quick",
        "--json",
        str(tmp_path / "found"),
    ]
    subprocess.run(command, cwd=ROOT, check=True, timeout=240)
    report = msgspec.json.decode((tmp_path / "found").read_bytes(), type=Report)
    counted = [row for row in report.rows if row.unit == "bytes"]
    assert len(counted) == 4 and all(row.ours == row.peer for row in counted)
