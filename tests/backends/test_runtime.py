"""Folders of running processes: private, gone at the end, and swept when their owner was killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from backends.runtime import RuntimeFolder, sweep

OWNER = "from backends.runtime import RuntimeFolder; print(RuntimeFolder().path, flush=True); input()"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_it_is_private_and_goes_with_everything_in_it(temporary: Path) -> None:
    folder = RuntimeFolder()
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "0.work").touch()
    folder.remove()
    folder.remove()
    assert not list(temporary.iterdir())


def test_what_a_killed_owner_left_is_swept_and_what_is_in_use_is_not(temporary: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())
        sweep()
        assert left.exists()
        owner.kill()
    mine = RuntimeFolder()
    assert not left.exists()
    sweep()
    assert mine.path.exists()
    mine.remove()


def test_what_is_not_ours_stays(temporary: Path) -> None:
    (temporary / "headrace-notes").mkdir()
    (temporary / "headrace-file").touch()
    sweep()
    assert len(list(temporary.iterdir())) == 2
