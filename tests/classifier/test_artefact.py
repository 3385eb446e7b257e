"""The artefact's files: the same bytes each time, no pickle, and a clear error for each kind of damage."""

import hashlib
import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from classifier import artefact
from classifier.artefact import META, REFERENCE, SHIPPED, WEIGHTS, ArtefactError, Reference


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "artefact"
    shutil.copytree(SHIPPED, folder)
    return folder


def edit(folder: Path, **changes: object) -> None:
    meta = msgspec.json.decode((folder / META).read_bytes())
    (folder / META).write_bytes(msgspec.json.encode(meta | changes))


def replace(folder: Path, data: bytes) -> None:
    (folder / WEIGHTS).write_bytes(data)
    edit(folder, weights=hashlib.sha256(data).hexdigest())


def arrays(**changes: np.ndarray) -> bytes:
    with np.load(SHIPPED / WEIGHTS, allow_pickle=False) as shipped:
        content = {name: shipped[name] for name in shipped.files} | changes
    file = io.BytesIO()
    np.savez(file, allow_pickle=True, **content)
    return file.getvalue()


def without_bias() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(SHIPPED / WEIGHTS) as shipped, zipfile.ZipFile(file, "w") as smaller:
        for name in shipped.namelist():
            if name != "bias.npy":
                smaller.writestr(name, shipped.read(name))
    return file.getvalue()


def damaged(at: int) -> bytes:
    data = bytearray((SHIPPED / WEIGHTS).read_bytes())
    data[at : at + 64] = bytes(64)
    return bytes(data)


def test_what_ships_is_small_and_complete() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 1_000_000
    weights, meta = artefact.load(SHIPPED)
    assert meta.tiers == ("7b", "13b", "70b")
    assert set(meta.tasks) == {"code", "math", "translation", "summarization", "creative", "qa", "chat"}
    assert weights.grams.dtype == np.float32
    assert (weights.low <= weights.high).all()


def test_packing_gives_the_same_bytes_and_loses_nothing_more_than_once() -> None:
    weights, _ = artefact.load(SHIPPED)
    assert artefact.pack(weights) == artefact.pack(weights) == (SHIPPED / WEIGHTS).read_bytes()
    again = artefact.unpack(artefact.pack(weights))
    for name in ("structure", "grams", "bias", "low", "high", "directions", "phases", "waves"):
        np.testing.assert_array_equal(getattr(again, name), getattr(weights, name))
    for name in ("known", "usual", "slopes"):
        np.testing.assert_array_equal(getattr(again.doubt, name), getattr(weights.doubt, name))


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (lambda folder: (folder / META).unlink(), "meta.json: No such file"),
        (lambda folder: (folder / WEIGHTS).unlink(), "weights.npz: No such file"),
        (lambda folder: (folder / META).write_text("{"), "meta.json: Input data was truncated"),
        (lambda folder: (folder / META).write_bytes(b'"\xff"'), "meta.json: "),
        (lambda folder: edit(folder, tiers=5), r"meta.json: Expected `array`, got `int` - at `\$.tiers`"),
        (lambda folder: edit(folder, extra=5), "meta.json: Object contains unknown field `extra`"),
        (lambda folder: edit(folder, format=1), "meta.json: format is version 1, not 3; train again"),
        (lambda folder: edit(folder, features=0), "meta.json: features is version 0, not 3; train again"),
        (
            lambda folder: (folder / WEIGHTS).write_bytes(b""),
            "weights.npz: is not the file that meta.json describes",
        ),
        (
            lambda folder: edit(folder, tiers=["7b"]),
            r"weights.npz: structure has the shape \(57, 10\), not \(57, 8\)",
        ),
        (lambda folder: replace(folder, b""), "weights.npz: "),
        (lambda folder: replace(folder, b"PK no zip"), "weights.npz: "),
        (lambda folder: replace(folder, without_bias()), "weights.npz: bias"),
        (lambda folder: replace(folder, damaged(200)), "weights.npz: "),
        (lambda folder: replace(folder, damaged(20_000)), "weights.npz: "),
        (
            lambda folder: replace(folder, arrays(known=np.zeros(9, np.uint8))),
            "weights.npz: known does not go with the lexicon's",
        ),
        (
            lambda folder: replace(folder, arrays(slopes=np.zeros(3))),
            r"weights.npz: slopes has the shape \(3,\), not \(2,\)",
        ),
        (
            lambda folder: replace(folder, arrays(phases=np.zeros(0))),
            r"weights.npz: directions has the shape",
        ),
        (
            lambda folder: replace(folder, arrays(bias=np.full(10, np.nan))),
            "weights.npz: bias holds numbers that are",
        ),
        (lambda folder: replace(folder, arrays(bias=np.array(["x"] * 10))), "weights.npz: "),
        (
            lambda folder: replace(folder, arrays(bias=np.array([print] * 10))),
            "weights.npz: Object arrays cannot be",
        ),
    ],
)
def test_damage_is_told(copy: Path, break_it: Callable[[Path], object], told: str) -> None:
    break_it(copy)
    with pytest.raises(ArtefactError, match=told):
        artefact.load(copy)


def break_reference(folder: Path, **changes: np.ndarray) -> None:
    with np.load(SHIPPED / REFERENCE, allow_pickle=False) as shipped:
        content = {name: shipped[name] for name in shipped.files} | changes
    file = io.BytesIO()
    np.savez(file, **content)
    (folder / REFERENCE).write_bytes(file.getvalue())
    edit(folder, reference=hashlib.sha256(file.getvalue()).hexdigest())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"estimates": np.full((3, 2), 0.5)}, r"estimates has the shape \(3, 2\)"),
        ({"estimates": np.full((3, 3), 1.5)}, "no probabilities"),
        ({"estimates": np.full((3, 3), np.nan)}, "no probabilities"),
        ({"questions": np.array(["x"])}, "no list of 64-bit numbers"),
    ],
)
def test_a_damaged_reference_is_told(copy: Path, changes: dict[str, np.ndarray], told: str) -> None:
    break_reference(copy, **changes)
    with pytest.raises(ArtefactError, match=f"reference.npz: .*{told}"):
        artefact.load_reference(copy)


def test_the_reference_knows_what_was_fitted_on() -> None:
    reference = Reference(
        np.sort(np.array([artefact.mark("a"), artefact.mark("b")], np.uint64)),
        np.full((1, 3), 0.5, np.float32),
    )
    assert [reference.fitted(question) for question in ("a", " b\n", "c", "")] == [True, True, False, False]


def test_nothing_in_the_package_unpickles() -> None:
    sources = SHIPPED.parent.glob("*.py")
    assert not [
        path.name for path in sources if "import pickle" in path.read_text() or "joblib" in path.read_text()
    ]
