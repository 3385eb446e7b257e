"""What training leaves behind: `weights.npz` and `reference.npz` (plain arrays, never pickled), and `meta.json`.

With look = structure, clipped to [low, high], and meaning, the logits are
    bias + structure @ structure weights + grams @ gram weights, and, for the tiers, + waves @ wave weights
where waves = cos(look @ directions + phases). One column per head: each tier, then one per task. What they
say of a tier is tempered by `classifier.doubt`.
"""

import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier import Task, features, lexicon
from classifier.doubt import Doubt
from classifier.features import BUCKETS, LOOK, STRUCTURE, Features
from classifier.figures import Figures

FORMAT = 3
SHIPPED = Path(__file__).parent / "artefact"
WEIGHTS, REFERENCE, META = "weights.npz", "reference.npz", "meta.json"


class ArtefactError(ValueError):
    """An artefact cannot be used; the message names the file and the reason."""


class Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`weights` and `reference` are the SHA-256 of these files, `data` those of what it was fitted on."""

    format: int
    features: int
    tiers: tuple[str, ...]
    tasks: tuple[Task, ...]
    weights: str
    reference: str
    data: dict[str, str]
    figures: Figures


@dataclass(frozen=True, slots=True)
class Weights:
    """S structure features, L of the look, B buckets, W waves, T tiers, H heads."""

    structure: NDArray[np.float32]  # (S, H)
    grams: NDArray[np.float32]  # (B, H); kept as float16 in the file
    bias: NDArray[np.float32]  # (H,)
    low: NDArray[np.float32]  # (S,): what is below is raised to it, so that odd prompts stay near known ones
    high: NDArray[np.float32]  # (S,)
    directions: NDArray[np.float32]  # (L, W)
    phases: NDArray[np.float32]  # (W,)
    waves: NDArray[np.float32]  # (W, T)
    doubt: Doubt

    def logits(self, of: Features) -> NDArray[np.float32]:
        """(H,), before any doubt. Without BLAS, whose threads would cost more than they save."""
        structure = np.minimum(np.maximum(of.structure, self.low), self.high)
        logits: NDArray[np.float32] = (
            self.bias
            + np.einsum("s,sh->h", structure, self.structure)
            + np.einsum("b,bh->h", of.weights, self.grams[of.buckets])
        )
        look = np.concatenate([structure, of.meaning])
        waves = np.cos(np.einsum("l,lw->w", look, self.directions) + self.phases)
        logits[: self.waves.shape[1]] += np.einsum("w,wt->t", waves, self.waves)
        return logits

    def check(self, tiers: int, tasks: int) -> None:
        """Raises ArtefactError when a shape is wrong or a number is not finite."""
        heads, waves = tiers + tasks, len(self.phases)
        shapes = {
            "structure": (len(STRUCTURE), heads),
            "grams": (BUCKETS, heads),
            "bias": (heads,),
            "low": (len(STRUCTURE),),
            "high": (len(STRUCTURE),),
            "directions": (LOOK, waves),
            "phases": (waves,),
            "waves": (waves, tiers),
            "usual": (tiers,),
            "slopes": (2,),
        }
        for name, shape in shapes.items():
            array = getattr(self if name in _OWN else self.doubt, name)
            if array.shape != shape:
                raise ArtefactError(f"{WEIGHTS}: {name} has the shape {array.shape}, not {shape}")
            if not np.isfinite(array).all():
                raise ArtefactError(f"{WEIGHTS}: {name} holds numbers that are not finite")


_OWN = frozenset(Weights.__dataclass_fields__) - {"doubt"}
_DOUBT = frozenset(Doubt.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Reference:
    """What was asked while fitting, and what is said of questions that were not seen then."""

    questions: NDArray[np.uint64]  # marks of the questions fitted on, sorted, so that none is measured with
    estimates: NDArray[np.float32]  # (n, tiers): P(good) of unseen prompts, what a usual request looks like

    def fitted(self, question: str) -> bool:
        """Whether the artefact has been fitted on this question."""
        at = int(np.searchsorted(self.questions, np.uint64(mark(question))))
        return at < len(self.questions) and int(self.questions[at]) == mark(question)


def mark(question: str) -> int:
    """64 bits of the SHA-256 of a question."""
    digest = hashlib.sha256(question.strip().encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "little")


def pack(weights: Weights) -> bytes:
    """The bytes of weights.npz; the same weights give the same bytes."""
    arrays = {name: getattr(weights, name) for name in sorted(_OWN)}
    arrays |= {name: getattr(weights.doubt, name) for name in sorted(_DOUBT)}
    return _zipped(
        arrays | {"grams": weights.grams.astype(np.float16), "known": np.packbits(weights.doubt.known)}
    )


def pack_reference(reference: Reference) -> bytes:
    """The bytes of reference.npz."""
    return _zipped({"questions": reference.questions, "estimates": reference.estimates.astype(np.float16)})


def _zipped(arrays: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def unpack(data: bytes) -> Weights:
    """Raises ArtefactError."""
    arrays = _unzipped(data, WEIGHTS, sorted(_OWN | _DOUBT))
    known = arrays.pop("known")
    floats = {name: _floats(array, WEIGHTS, name) for name, array in arrays.items()}
    doubt = Doubt(known=_flags(known), **{name: floats.pop(name) for name in sorted(_DOUBT - {"known"})})
    return Weights(**floats, doubt=doubt)


def _flags(packed: Any) -> NDArray[np.bool_]:
    """One for each word of the lexicon."""
    count = len(lexicon.shipped().hashes)
    if packed.dtype != np.uint8 or packed.shape != (-(-count // 8),):
        raise ArtefactError(f"{WEIGHTS}: known does not go with the lexicon's {count} words")
    flags: NDArray[np.bool_] = np.unpackbits(packed, count=count).astype(bool)
    return flags


def _unzipped(data: bytes, file: str, names: Iterable[str]) -> dict[str, Any]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names}
    except KeyError as error:
        raise ArtefactError(f"{file}: {error.args[0]}") from error
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ArtefactError(f"{file}: {error}") from error


def _floats(array: Any, file: str, name: str) -> NDArray[np.float32]:
    try:
        floats: NDArray[np.float32] = array.astype(np.float32)
    except ValueError as error:
        raise ArtefactError(f"{file}: {name}: {error}") from error
    return floats


def save(folder: Path, weights: bytes, reference: bytes, meta: Meta) -> None:
    """Write the three files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / WEIGHTS).write_bytes(weights)
    (folder / REFERENCE).write_bytes(reference)
    (folder / META).write_bytes(msgspec.json.format(msgspec.json.encode(meta)) + b"\n")


def load(folder: Path) -> tuple[Weights, Meta]:
    """Raises ArtefactError for a file that is missing, damaged, or made for other features."""
    meta = _meta(folder)
    weights = unpack(_described(folder, WEIGHTS, meta.weights))
    weights.check(len(meta.tiers), len(meta.tasks))
    return weights, meta


def load_reference(folder: Path) -> Reference:
    """Raises ArtefactError as `load` does."""
    meta = _meta(folder)
    arrays = _unzipped(
        _described(folder, REFERENCE, meta.reference), REFERENCE, Reference.__dataclass_fields__
    )
    questions, estimates = arrays["questions"], _floats(arrays["estimates"], REFERENCE, "estimates")
    if questions.dtype != np.uint64 or questions.ndim != 1:
        raise ArtefactError(f"{REFERENCE}: questions are no list of 64-bit numbers")
    if estimates.ndim != 2 or estimates.shape[1] != len(meta.tiers) or not len(estimates):
        raise ArtefactError(f"{REFERENCE}: estimates has the shape {estimates.shape}")
    if not ((estimates >= 0) & (estimates <= 1)).all():
        raise ArtefactError(f"{REFERENCE}: estimates holds numbers that are no probabilities")
    return Reference(questions, estimates)


def _meta(folder: Path) -> Meta:
    try:
        meta = msgspec.json.decode(_read(folder / META), type=Meta)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArtefactError(f"{META}: {error}") from error
    for name, found, known in (
        ("format", meta.format, FORMAT),
        ("features", meta.features, features.VERSION),
    ):
        if found != known:
            raise ArtefactError(f"{META}: {name} is version {found}, not {known}; train again")
    return meta


def _described(folder: Path, name: str, digest: str) -> bytes:
    data = _read(folder / name)
    if hashlib.sha256(data).hexdigest() != digest:
        raise ArtefactError(f"{name}: is not the file that {META} describes")
    return data


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtefactError(f"{error.filename}: {error.strerror}") from error
