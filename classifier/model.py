"""Scoring: numpy alone, a fraction of a millisecond, any text."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classifier import Assessment, Task, artefact
from classifier.artefact import Weights
from classifier.features import extract


class Classifier:
    """`assess` the last user turn: what it asks for, and how likely each tier's answer to it is good."""

    def __init__(
        self,
        weights: Weights,
        tiers: tuple[str, ...],
        tasks: tuple[Task, ...],
        usual: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """`usual`: P(good) of some usual requests, by tier."""
        self.usual = usual or {}
        self._weights = weights
        self._tiers = tiers
        self._tasks = tasks

    @classmethod
    def load(cls, folder: Path | None = None) -> "Classifier":
        """The artefact in `folder`, or the one that ships. Raises ArtefactError."""
        folder = folder or artefact.SHIPPED
        weights, meta = artefact.load(folder)
        columns = artefact.load_reference(folder).estimates.T.tolist()
        return cls(weights, meta.tiers, meta.tasks, dict(zip(meta.tiers, columns, strict=True)))

    def assess(self, text: str) -> Assessment:
        """Never raises."""
        started = time.perf_counter()
        found = extract(text)
        logits = self._weights.logits(found)
        tiers = len(self._tiers)
        good = self._weights.doubt.temper(rising(logits[:tiers]), found)
        return Assessment(
            task=self._tasks[int(logits[tiers:].argmax())],
            good=dict(zip(self._tiers, good.tolist(), strict=True)),
            seconds=time.perf_counter() - started,
        )


def rising(logits: NDArray[Any]) -> NDArray[Any]:
    """P(good) of logits (tiers, ...), which never falls from a tier to the next dearer one.

    Where heads say so it is noise, since no set of questions is known on which the larger of these models is worse,
    and held-out likelihood rises when the dearer tier's estimate is lifted to the cheaper one's.
    """
    good: NDArray[Any] = np.maximum.accumulate(1 / (1 + np.exp(-logits)), axis=0)
    return good
