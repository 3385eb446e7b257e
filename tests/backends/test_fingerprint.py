"""A model is known by its weights, not by where it lies."""

import json
import shutil
from pathlib import Path

import pytest

from backends.fingerprint import PIECE, PIECES, fingerprint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    (made / "model.safetensors").write_bytes(bytes(range(256)) * (PIECES * PIECE // 64))
    return made


def test_another_place_is_the_same_model(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "elsewhere")
    assert fingerprint(copy) == fingerprint(folder)
    assert len(fingerprint(folder)) == 64


def test_other_weights_of_the_same_shape_are_another_model(folder: Path) -> None:
    before = fingerprint(folder)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors").write_bytes(bytes(byte ^ 1 for byte in weights))
    assert fingerprint(folder) != before


@pytest.mark.parametrize("change", ["longer", "config"])
def test_so_is_a_longer_file_or_another_shape(folder: Path, change: str) -> None:
    before = fingerprint(folder)
    if change == "longer":
        with (folder / "model.safetensors").open("ab") as file:
            file.write(b"x")
    else:
        (folder / "config.json").write_text('{"layers": 2}')
    assert fingerprint(folder) != before


def test_a_converted_folder_knows_its_source(folder: Path) -> None:
    manifest = {"layout": 1, "source": "m.gguf", "sha256": "ab" * 32}
    (folder / "headrace.json").write_text(json.dumps(manifest))
    assert fingerprint(folder) == "ab" * 32


def test_a_single_file(tmp_path: Path) -> None:
    for name, data in (("m.gguf", b"GGUF"), ("n.gguf", b"GGUE")):
        (tmp_path / name).write_bytes(data)
    assert fingerprint(tmp_path / "m.gguf") != fingerprint(tmp_path / "n.gguf")


def test_an_empty_file_of_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")
    assert fingerprint(folder)
