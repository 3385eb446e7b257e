"""Recorded answers of several tiers side by side, each with the confidence of rules that have not seen its sample."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from backends.backend import Usage
from classifier import Task
from classifier.confide import FEWEST_GOOD
from classifier.confidence import Confidence, Floats, features
from gateway.config import Price
from gateway.judges import Brief
from gateway.judging import Terms
from gateway.learning.fitting import rules
from gateway.learning.recordings import Recording
from gateway.learning.replaying import Judged, judged
from gateway.prices import cost
from gateway.routing import EXPECTED_ANSWER

FOLDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """N samples, T tiers, the cheapest first; each array (N, T) but `folds`, (N,), `dearer` and `onward`, (N, T, T).

    `usual`: what an answer is expected to cost before there is one; `confidence`: P(good) at the moment of the
    decision, NaN where nothing can be said; `held`: what the attempt has cost by then; `rest`: what the rest of it is
    expected to cost; `dearer`: what a whole answer of each tier is, as seen from each; `onward`: P(good) of each tier
    (last) once each tier's answer (middle) is seen, NaN before `gateway.learning.prospecting.foreseen`; `cost`: what
    the whole answer costs.
    """

    tiers: tuple[str, ...]
    samples: tuple[str, ...]
    good: Floats
    expected: Floats
    usual: Floats
    confidence: Floats
    held: Floats
    rest: Floats
    dearer: Floats
    onward: Floats
    cost: Floats
    folds: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.samples)

    def of(self, rows: NDArray[np.intp]) -> "Outcomes":
        """These samples alone."""
        parts = {
            each.name: getattr(self, each.name)[rows]
            for each in fields(self)
            if each.name not in ("tiers", "samples")
        }
        return replace(self, samples=tuple(self.samples[row] for row in rows.tolist()), **parts)


def fold(sample: str) -> int:
    """Which of FOLDS a sample belongs to, the same in every run."""
    return int(sample[:8], 16) % FOLDS


def terms(when: str, tokens: int) -> Terms:
    """Time plays no part in what is replayed."""
    return Terms(
        when="end" if when == "end" else "hold",
        tokens=tokens,
        seconds=math.inf,
        speculative=False,
    )


class Verdicts:
    """The confidence in every recorded answer of one tier, by rules that were fitted without its fold."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self._recordings = recordings
        self._rules = {
            held: rules(each for each in recordings if fold(each.sample) != held) for held in range(FOLDS)
        }
        self._confidence = {held: Confidence(own) for held, own in self._rules.items()}

    def estimates(self, task: Task, after: int | None) -> tuple[list[Recording], Floats]:
        """The answers that could be judged after so many tokens (None: at their end), and P(good) of each, whether or
        not a gateway would listen to the rule."""
        fitted = {
            held: rule
            for held, own in self._rules.items()
            for rule in own
            if (rule.task, rule.after) == (task, after)
        }
        asked = [
            each
            for each in self._recordings
            if each.task == task and len(each.logprobs) >= (after or 1) and fold(each.sample) in fitted
        ]
        told = [fitted[fold(each.sample)].estimate(_seen(each, after)) for each in asked]
        return asked, np.array(told, np.float64)

    def brief(self, recording: Recording, of: Terms) -> Brief:
        confidence = self._confidence[fold(recording.sample)]
        return Brief(confidence=confidence, task=recording.task, good=recording.expected, terms=of)

    def judged(self, recording: Recording, of: Terms) -> Judged:
        """As a gateway would, which judges nothing where no rule can."""
        brief = self.brief(recording, of)
        if brief.confidence.silent(recording.task) is not None:
            return Judged(None, recording.tokens, ended=True)
        return judged(recording, brief)


def _seen(recording: Recording, after: int | None) -> Floats:
    if after is None:
        return features(recording.trace, recording.finish, recording.expected)
    return features(recording.trace.first(after), None, recording.expected)


def right(recordings: Iterable[Recording]) -> dict[str, int]:
    """Good answers by tier."""
    found: dict[str, int] = {}
    for each in recordings:
        found[each.tier] = found.get(each.tier, 0) + each.good
    return found


def worth_judging(recordings: Sequence[Recording], tiers: Sequence[str]) -> tuple[str, ...]:
    """Of tiers, the cheapest first, those with enough good answers to tell good from bad, and the dearest."""
    good = right(recordings)
    return (*(tier for tier in tiers[:-1] if good.get(tier, 0) >= FEWEST_GOOD), tiers[-1])


def outcomes(
    recordings: Sequence[Recording],
    prices: Mapping[str, Price],
    verdicts: Mapping[str, Verdicts],
    of: Terms,
) -> Outcomes:
    """Of the samples that every tier has answered. `prices`: of the tiers that take part, the cheapest first."""
    by_sample: dict[str, dict[str, Recording]] = {}
    for each in recordings:
        by_sample.setdefault(each.sample, {})[each.tier] = each
    rows = [
        (sample, [found[tier] for tier in prices])
        for sample, found in by_sample.items()
        if found.keys() >= prices.keys()
    ]
    seen = [[verdicts[each.tier].judged(each, of) for each in answers] for _, answers in rows]
    table = list(prices.values())

    def array(values: Iterable[Iterable[float]]) -> Floats:
        return np.array([list(row) for row in values], np.float64).reshape(-1, len(prices))

    def over(cost_of: Callable[[Price, Recording, Judged], float]) -> Floats:
        return array(
            map(cost_of, table, answers, judgements)
            for (_, answers), judgements in zip(rows, seen, strict=True)
        )

    return Outcomes(
        tiers=tuple(prices),
        samples=tuple(sample for sample, _ in rows),
        good=array((each.good for each in answers) for _, answers in rows),
        expected=array((_known(each.expected) for each in answers) for _, answers in rows),
        usual=over(lambda price, each, at: _cost(price, each.prompt_tokens, EXPECTED_ANSWER)),
        confidence=array((_known(each.confidence) for each in judgements) for judgements in seen),
        held=over(lambda price, each, at: _cost(price, each.prompt_tokens, at.tokens)),
        rest=over(lambda price, each, at: _cost(price, 0, 0 if at.ended else _length(at) - at.tokens)),
        dearer=np.array([
            [[_cost(price, to.prompt_tokens, _length(at)) for price, to in zip(table, answers, strict=True)]
             for at in judgements]
            for (_, answers), judgements in zip(rows, seen, strict=True)
        ], np.float64).reshape(-1, len(prices), len(prices)),
        onward=np.full((len(rows), len(prices), len(prices)), np.nan),
        cost=over(lambda price, each, at: _cost(price, each.prompt_tokens, each.tokens)),
        folds=np.array([fold(sample) for sample, _ in rows], np.intp),
    )  # fmt: skip


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _length(at: Judged) -> int:
    """As `gateway.stakes` takes it where λ was solved for a goal, and the client has set no bound."""
    return max(at.tokens, EXPECTED_ANSWER)


def _cost(price: Price, prompt: int, answer: int) -> float:
    return cost(price, Usage(prompt_tokens=prompt, completion_tokens=answer))
