"""How hard is this prompt, and what kind of task is it? Answered before any model has run.

`headrace train` fits the artefact with scikit-learn; scoring needs numpy alone and takes well under 2 ms.
"""

from typing import Literal

import msgspec

Task = Literal["code", "math", "translation", "summarization", "creative", "qa", "chat"]


class Assessment(msgspec.Struct, frozen=True):
    """`good` holds, for each tier that the artefact knows ("7b", "13b", "70b"), P(this tier's answer is good)."""

    task: Task
    good: dict[str, float]
    seconds: float  # what the assessment took
