"""How long a step will take, learned from the steps that have run, and how much prompt fits into one.

A step costs something in itself, something for each token, and something for each pair of tokens that attention
looks at: late chunks of a long prompt cost many times what early ones do. The model is linear in these and is fitted
by least squares on relative errors, in which old steps count for less and less. Steps of decoding alone, those with
drafts, and those with prompt fade apart, so that an hour of the one does not make the other forgotten.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

FADE = 0.98  # of what is known, with each step of the same kind
DRIFT = 0.2  # weight of the last step in what the machine's other work does to all of them
OUTLIER = 3.0  # times as long as predicted, or as short: more is taken for this
FAMILIAR = 4  # steps of either kind, before which nothing is foretold
FIRST_CHUNK = 32  # tokens; no chunk beside decoding rows is more than twice what has been tried
RIDGE = 1e-6  # keeps what never varied from being blamed
STRETCH = 2.0  # times as long as without prompts is a step, where no budget is set
WORTHWHILE = (
    4.0  # times as long as an empty step should one of prompts alone be, or its weights are read for little
)

Kind = Literal["decode", "draft", "prompt"]
Floats = NDArray[np.float64]
SCALES = np.array([1.0, 100.0, 1e5, 1e4])  # of a step, its tokens, pairs, and context of chunks


@dataclass(frozen=True, slots=True)
class Work:
    """What a step runs. `context`: tokens that lie before chunks, and are read once for each."""

    rows: int = 0
    tokens: int = 0
    pairs: float = 0.0
    context: int = 0
    drafted: int = 0  # of `tokens`

    @classmethod
    def of(cls, spans: Iterable[tuple[int, int]]) -> "Work":
        """`spans`: (start, count) of each row."""
        total = cls()
        for start, count in spans:
            total = total.and_span(start, count)
        return total

    def and_span(self, start: int, count: int, drafted: int = 0) -> "Work":
        """`drafted`: the last ones of `count`."""
        pairs = count * (start + (count + 1) / 2)
        context = start if count > 1 else 0
        return Work(
            self.rows + 1,
            self.tokens + count,
            self.pairs + pairs,
            self.context + context,
            self.drafted + drafted,
        )

    @property
    def kind(self) -> Kind:
        """What there is most of to pay for: prompt, or else drafts, or else tokens one by one."""
        if self.tokens > self.rows + self.drafted:
            return "prompt"
        return "draft" if self.drafted else "decode"

    def features(self) -> Floats:
        features: Floats = np.array([1.0, self.tokens, self.pairs, self.context]) / SCALES
        return features


class CostModel:
    """Seconds of a step. Deterministic: the same steps teach it the same."""

    def __init__(self) -> None:
        self.error = 0.0  # mean relative error of the last predictions
        self.largest = 0  # tokens of a step that has run
        self._grams = {kind: np.zeros((4, 4)) for kind in get_args(Kind)}
        self._moments = {kind: np.zeros(4) for kind in get_args(Kind)}
        self._weights: Floats = np.zeros(4)
        self._drift = 1.0
        self._steps = 0

    def predict(self, work: Work) -> float | None:
        """Seconds; None before it has seen a few steps."""
        return None if self._steps < FAMILIAR else self._drift * float(self._weights @ work.features())

    def learn(self, work: Work, seconds: float) -> None:
        """A step took so long. One that took no time on the clock teaches nothing."""
        if not seconds > 0:
            return
        predicted = self.predict(work)
        if predicted:
            ratio = seconds / predicted
            self.error += DRIFT * (abs(ratio - 1) - self.error)
            ratio = min(max(ratio, 1 / OUTLIER), OUTLIER)
            self._drift = min(max(self._drift * ratio**DRIFT, 1 / OUTLIER), OUTLIER)
            seconds = ratio * predicted
        self._steps += 1
        self.largest = max(self.largest, work.tokens)
        self._fit(work, seconds)

    def _fit(self, work: Work, seconds: float) -> None:
        x = work.features() / seconds
        self._grams[work.kind] = FADE * self._grams[work.kind] + np.outer(x, x)
        self._moments[work.kind] = FADE * self._moments[work.kind] + x
        gram, moment = sum(self._grams.values()), sum(self._moments.values())
        self._weights = _positive_solution(np.asarray(gram), np.asarray(moment))


def _positive_solution(gram: Floats, moment: Floats) -> Floats:
    """Least squares where nothing costs less than nothing: what comes out negative is left out."""
    used = np.ones(len(moment), bool)
    solution = np.zeros(len(moment))
    gram = gram + RIDGE * np.trace(gram) * np.eye(len(moment))
    while used.any():
        solution[:] = 0
        solution[used] = np.linalg.solve(gram[np.ix_(used, used)], moment[used])
        if not (solution < 0).any():
            break
        used &= solution >= 0
    return solution


class StepBudget:
    """What is left of one step for prompts: tokens, and predicted seconds as far as anything can be foretold.

    `seconds`: of the whole step; None where nothing can.
    """

    def __init__(self, model: CostModel, decoding: Work, tokens: int, target: float, stretch: bool) -> None:
        """`decoding`: the rows that run in any case; `target`: seconds of the whole step, `stretch`: but no more
        than STRETCH times as long as the decoding rows alone, where there are any."""
        self.tokens = tokens
        self._model = model
        self._work = decoding
        self._begun = False
        self.seconds: float | None = None
        alone = model.predict(decoding)
        if alone is None:
            return
        if decoding.rows:
            self.tokens = min(tokens, max(FIRST_CHUNK, 2 * model.largest))
            target = STRETCH * alone if stretch else max(target, alone * (1 + 1 / 4))
        else:
            target = max(target, WORTHWHILE * alone)
        self.seconds = max(target, alone)

    def affords(self, start: int, count: int) -> int:
        """How many of `count` tokens from `start` on fit; the first tokens of prompt in a step always do, a few."""
        count = min(count, self.tokens)
        if self.seconds is None or self._fits(start, count):
            return count
        low, high = 0, count
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(start, middle) else (low, middle)
        return low if self._begun else max(low, 1)

    def take(self, start: int, count: int) -> None:
        self.tokens -= count
        self._begun = True
        self._work = self._work.and_span(start, count)

    def _fits(self, start: int, count: int) -> bool:
        seconds = self._model.predict(self._work.and_span(start, count))
        return seconds is None or self.seconds is None or seconds <= self.seconds
