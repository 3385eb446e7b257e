"""Putting a sample to the tiers of a configuration, on engines of its own, one tier after the other."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from backends.backend import Backend, BackendError, Delta, Generation, Overloaded, Rejected, Sampling
from backends.prompt import Prompt
from classifier import Assessment
from gateway.config import Config, Tier
from gateway.judges import Weights
from gateway.learning.checkers import Ask, Judge, good
from gateway.learning.grading import VERDICT, question, recorded, says_yes, text_of
from gateway.learning.recordings import Book, Recording
from gateway.learning.running import running
from gateway.learning.samples import Sample
from gateway.weights import weights_of

PARALLEL = 32  # answers at a time
TRIES = 6  # of an answer, since a server may be busy or an engine come back
BEGINS = 60  # characters of a prompt, by which people find it
WAIT = 1.0  # seconds after the first one, and twice as long after each other

Tell = Callable[[Sample, str, str], None]
"""Of an answer: what was asked, the tier, and its words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """`tiers`: names of those that are asked; `judge`: the tier that checkers of that kind ask; `tell`: is told of
    every answer in its words, which are kept nowhere else."""

    config: Config
    samples: Sequence[Sample]
    tiers: Sequence[str]
    judge: str
    parallel: int = PARALLEL
    tell: Tell = lambda sample, tier, text: None


def ran_by(tier: Tier) -> Weights:
    """What all replicas of the tier run. Raises ValueError where they differ, as calibrations are of one model."""
    first, *others = weights_of(tier)
    if any(other != first for other in others):
        raise ValueError(
            f"{tier.name}: its replicas run different weights; calibrate them as tiers of their own"
        )
    return first


def todo(errand: Errand, tier: Tier, book: Book) -> list[Sample]:
    """What the tier has not answered yet, in the order of the sample. Raises ValueError as `ran_by`."""
    ran = ran_by(tier)
    return [s for s in errand.samples if (s.digest, tier.name, ran.model, ran.format) not in book]


def missing(errand: Errand, book: Book) -> int:
    """Answers that are not in the book yet."""
    return sum(len(todo(errand, tier, book)) for tier in errand.config.tiers if tier.name in errand.tiers)


def present(config: Config, recordings: Sequence[Recording]) -> list[Recording]:
    """Those of what the tiers run now."""
    runs = {(tier.name, weights) for tier in config.tiers for weights in weights_of(tier)}
    return [each for each in recordings if (each.tier, Weights(each.model, each.weights)) in runs]


async def record(
    errand: Errand, book: Book, assess: Callable[[str], Assessment], progress: Callable[[], object]
) -> None:
    """Every answer that is missing. `progress` is called after each.

    Raises EngineStartError, BackendError, OSError, ValueError. What is in the book by then stays.
    """
    for tier in errand.config.tiers:
        rest = todo(errand, tier, book) if tier.name in errand.tiers else []
        if not rest:
            continue
        others = [errand.judge] if any(isinstance(sample.checker, Judge) for sample in rest) else []
        asked = tuple(each for each in errand.config.tiers if each.name in {tier.name, *others})
        async with running(replace(errand.config, tiers=asked), errand.parallel) as backends:
            clerk = _Clerk(errand, tier.name, backends, ran_by(tier), assess)
            await _side_by_side(rest, errand.parallel, clerk, book, progress)


async def _side_by_side(
    samples: Sequence[Sample], parallel: int, clerk: "_Clerk", book: Book, progress: Callable[[], object]
) -> None:
    coming = iter(samples)

    async def work() -> None:
        for sample in coming:
            book.add(await clerk.recording(sample))
            progress()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(parallel):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


class _Clerk:
    """Of one tier."""

    def __init__(
        self,
        errand: Errand,
        tier: str,
        backends: dict[str, Sequence[Backend]],
        ran: Weights,
        assess: Callable[[str], Assessment],
    ) -> None:
        self._errand = errand
        self._tier = tier
        self._backends = backends
        self._ran = ran
        self._assess = assess

    async def recording(self, sample: Sample) -> Recording:
        """Raises BackendError, ValueError naming a sample that the tier or the judge cannot take."""
        try:
            return await self._graded(sample)
        except Rejected as error:
            begins = f"the sample that begins {sample.words[:BEGINS]!r}"
            raise ValueError(f"{self._tier}: {begins}: {error.message}") from error

    async def _graded(self, sample: Sample) -> Recording:
        sampling = Sampling(max_tokens=sample.max_tokens, temperature=0.0, signals=True)
        deltas = await self._answer(self._tier, sample.asked, sampling)
        text = text_of(deltas)
        self._errand.tell(sample, self._tier, text)
        return recorded(
            deltas,
            sample=sample.digest,
            set=sample.set,
            tier=self._tier,
            ran=self._ran,
            assessment=self._assess(sample.words),
            good=await good(sample.checker, text, self._asking(sample)),
        )

    def _asking(self, sample: Sample) -> Ask:
        async def ask(wanted: str, answer: str) -> bool:
            prompt = question(sample.words, answer, wanted)
            return says_yes(await self._answer(self._errand.judge, prompt, VERDICT))

        return ask

    async def _answer(self, tier: str, prompt: Prompt, sampling: Sampling) -> list[Delta]:
        """Raises BackendError where no try has helped."""
        for wait in (WAIT * 2**number for number in range(TRIES - 1)):
            try:
                return await self._whole(tier, prompt, sampling)
            except BackendError as error:
                if not error.retryable:
                    raise
                asked = error.retry_after if isinstance(error, Overloaded) else None
                await asyncio.sleep(max(wait, asked or 0.0))
        return await self._whole(tier, prompt, sampling)

    async def _whole(self, tier: str, prompt: Prompt, sampling: Sampling) -> list[Delta]:
        backend = min(self._backends[tier], key=lambda each: each.in_flight)
        id = f"calibrate-{secrets.token_hex(4)}"
        generation = Generation(id=id, prompt=prompt, ids=None, sampling=sampling, traffic="batch")
        async with contextlib.aclosing(backend.stream(generation)) as deltas:
            return [delta async for delta in deltas]
