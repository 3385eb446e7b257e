"""What cannot be written in the end is told before anything begins."""

import re
from pathlib import Path

import pytest

from classifier.places import check_file, check_folder


def test_places_that_can_be_written(tmp_path: Path) -> None:
    check_file(tmp_path / "new.json")
    (tmp_path / "old.json").write_text("")
    check_file(tmp_path / "old.json")
    check_folder(tmp_path)
    check_folder(tmp_path / "a" / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]


def test_places_that_cannot(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(IsADirectoryError, match=re.escape(str(tmp_path))):
        check_file(tmp_path)
    with pytest.raises(FileNotFoundError, match=re.escape(f"{tmp_path}/none")):
        check_file(tmp_path / "none" / "out.json")
    for path in (file, file / "inner"):
        with pytest.raises(NotADirectoryError, match=re.escape(str(file))):
            check_folder(path)
