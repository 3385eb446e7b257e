"""What training leaves behind: `weights.npz` (plain arrays, never pickled) and `meta.json`.

The classifier is linear: logits = bias + clip(structure, low, high) @ structure weights + grams @ gram weights.
One column per head: P(good) of each tier, then one per task.
"""

import hashlib
import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier import Task, features
from classifier.features import BUCKETS, STRUCTURE, Features
from classifier.figures import Figures

FORMAT = 1
SHIPPED = Path(__file__).parent / "artefact"
WEIGHTS, META = "weights.npz", "meta.json"


class ArtefactError(ValueError):
    """An artefact cannot be used; the message names the file and the reason."""


class Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`weights` is the SHA-256 of weights.npz, `data` those of the files that it was fitted on."""

    format: int
    features: int
    tiers: tuple[str, ...]
    tasks: tuple[Task, ...]
    weights: str
    data: dict[str, str]
    figures: Figures


@dataclass(frozen=True, slots=True)
class Weights:
    """S structure features, B buckets, H heads."""

    structure: NDArray[np.float32]  # (S, H)
    grams: NDArray[np.float32]  # (B, H); kept as float16 in the file
    bias: NDArray[np.float32]  # (H,)
    low: NDArray[
        np.float32
    ]  # (S,): structure below it is raised to it, so that odd prompts stay near known ones
    high: NDArray[np.float32]  # (S,)

    def logits(self, of: Features) -> NDArray[np.float32]:
        """(H,). Without BLAS, whose threads would cost more than they save."""
        structure = np.clip(of.structure, self.low, self.high)
        logits: NDArray[np.float32] = (
            self.bias
            + np.einsum("s,sh->h", structure, self.structure)
            + np.einsum("b,bh->h", of.weights, self.grams[of.buckets])
        )
        return logits

    def check(self, heads: int) -> None:
        """Raises ArtefactError when a shape is wrong or a number is not finite."""
        structure, grams = len(STRUCTURE), BUCKETS
        shapes = {
            "structure": (structure, heads),
            "grams": (grams, heads),
            "bias": (heads,),
            "low": (structure,),
            "high": (structure,),
        }
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array.shape != shape:
                raise ArtefactError(f"{WEIGHTS}: {name} has the shape {array.shape}, not {shape}")
            if not np.isfinite(array).all():
                raise ArtefactError(f"{WEIGHTS}: {name} holds numbers that are not finite")


def pack(weights: Weights) -> bytes:
    """The bytes of weights.npz; the same weights give the same bytes."""
    file = io.BytesIO()
    arrays = {name: getattr(weights, name) for name in Weights.__dataclass_fields__}
    np.savez_compressed(file, allow_pickle=False, **(arrays | {"grams": weights.grams.astype(np.float16)}))
    return file.getvalue()


def unpack(data: bytes) -> Weights:
    """Raises ArtefactError."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return Weights(**{name: arrays[name].astype(np.float32) for name in Weights.__dataclass_fields__})
    except KeyError as error:
        raise ArtefactError(f"{WEIGHTS}: {error.args[0]}") from error
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ArtefactError(f"{WEIGHTS}: {error}") from error


def save(folder: Path, data: bytes, meta: Meta) -> None:
    """Write both files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / WEIGHTS).write_bytes(data)
    (folder / META).write_bytes(msgspec.json.format(msgspec.json.encode(meta)) + b"\n")


def load(folder: Path) -> tuple[Weights, Meta]:
    """Raises ArtefactError for a file that is missing, damaged, or made for other features."""
    try:
        meta = msgspec.json.decode((folder / META).read_bytes(), type=Meta)
        data = (folder / WEIGHTS).read_bytes()
    except OSError as error:
        raise ArtefactError(f"{error.filename}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArtefactError(f"{META}: {error}") from error
    for name, found, known in (
        ("format", meta.format, FORMAT),
        ("features", meta.features, features.VERSION),
    ):
        if found != known:
            raise ArtefactError(f"{META}: {name} is version {found}, not {known}; train again")
    if hashlib.sha256(data).hexdigest() != meta.weights:
        raise ArtefactError(f"{WEIGHTS}: is not the file that {META} describes")
    weights = unpack(data)
    weights.check(len(meta.tiers) + len(meta.tasks))
    return weights, meta
