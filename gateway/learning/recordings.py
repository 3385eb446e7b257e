"""What tiers made of a sample: one JSON line per answer, without prompts and without answers.

How sure the model was of each token is kept, so that rules of every kind can be fitted later on.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

import msgspec
import numpy as np

from classifier import Task
from classifier.confidence import Finish, Trace

VERSION: Literal[1] = 1
DIGITS = 3  # of the signals, behind the point


class RecordingError(ValueError):
    """The message names the line and the field."""


class Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One answer. `sample`: the digest of what was asked, see `Sample.digest`; `model` and `weights`: as calibrations
    know them; `expected`: P(good) by the prompt alone; the three lists: of the tokens that were not forced."""

    v: Literal[1] = VERSION
    sample: str
    set: str
    tier: str
    model: str
    weights: str
    task: Task
    expected: float | None
    good: bool
    finish: Finish
    prompt_tokens: int
    tokens: int
    forced: int
    logprobs: tuple[float, ...]
    margins: tuple[float | None, ...]
    entropies: tuple[float | None, ...]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """By which a later run knows that it is there."""
        return self.sample, self.tier, self.model, self.weights

    @property
    def trace(self) -> Trace:
        return Trace(
            np.array(self.logprobs, np.float64),
            np.array(self.margins, np.float64),
            np.array(self.entropies, np.float64),
            self.forced,
        )


class Book:
    """A file of recordings that grows: a line is there as a whole or not at all."""

    def __init__(self, path: Path) -> None:
        """Reads what is there; the rest of a line that a killed run has left behind is cut off.

        Raises RecordingError, OSError.
        """
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _mend(path)
        self.recordings = load(path) if path.exists() else []
        self._known = {each.key for each in self.recordings}
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __contains__(self, key: tuple[str, str, str, str]) -> bool:
        return key in self._known

    def add(self, recording: Recording) -> None:
        """Raises OSError."""
        self._file.write(msgspec.json.encode(recording) + b"\n")
        self.recordings.append(recording)
        self._known.add(recording.key)


def load(path: Path) -> list[Recording]:
    """The last one of each sample, tier and model. Raises RecordingError, OSError."""
    return list({each.key: each for each in _all(path)}.values())


def _all(path: Path) -> Iterator[Recording]:
    decoder = msgspec.json.Decoder(Recording)
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            recording = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RecordingError(f"{path}, line {number}: {error}") from error
        lengths = {len(recording.logprobs), len(recording.margins), len(recording.entropies)}
        if len(lengths) > 1:
            raise RecordingError(
                f"{path}, line {number}: logprobs, margins and entropies have different lengths"
            )
        yield recording


def _mend(path: Path) -> None:
    if not path.exists():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)
