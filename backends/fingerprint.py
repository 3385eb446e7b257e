"""Which model this is, whatever its folder is called: what a calibration belongs to."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from backends.catalogue import MANIFEST, Manifest

PIECES, PIECE = 64, 16 * 1024  # of each file of weights, evenly spread, in bytes


def fingerprint(model: Path) -> str:
    """64 hexadecimal digits for a folder or a .gguf file.

    A folder that was converted from a file knows that file's SHA-256. Of others the name, size and a megabyte in
    pieces of each file of weights are hashed, with config.json: reading all of a large model would take minutes, and
    training changes weights everywhere. Raises OSError.
    """
    try:
        return msgspec.json.decode((model / MANIFEST).read_bytes(), type=Manifest).sha256
    except (OSError, msgspec.MsgspecError):
        pass
    digest = hashlib.sha256()
    for path in _files(model):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        for piece in _pieces(path):
            digest.update(piece)
    return digest.hexdigest()


def _files(model: Path) -> list[Path]:
    if model.is_file():
        return [model]
    return [model / "config.json", *sorted(model.glob("*.safetensors"))]


def _pieces(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    step = max(PIECE, size // PIECES)
    with path.open("rb") as file:
        for at in range(0, size, step):
            file.seek(at)
            yield file.read(PIECE)
