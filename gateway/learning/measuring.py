"""A model on task files, by an engine as it would serve it."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import Callable, Sequence

from backends.backend import Backend, Delta, Generation, Rejected, Sampling, TokenScore
from backends.prompt import Prompt
from gateway.config import Config, Engine, Tier
from gateway.learning.checkers import good
from gateway.learning.grading import text_of
from gateway.learning.losses import Mark
from gateway.learning.running import running
from gateway.learning.samples import Sample
from gateway.learning.tasks import Choice, Item, Piece, Task

TIER = "model"
READ = Sampling(max_tokens=0, temperature=0.0, logprobs=0, prompt_logprobs=True)


async def measure(
    engine: Engine, tasks: Sequence[Task], parallel: int, progress: Callable[[], object]
) -> list[list[Mark]]:
    """The marks of each task's items. `progress` is called after each item.

    Raises EngineStartError, BackendError, OSError, ValueError naming the task and the item that cannot run.
    """
    config = Config(tiers=(Tier(name=TIER, engines=(engine,)),))
    async with running(config, parallel) as backends:
        [backend] = backends[TIER]
        return [await _marks(_Examiner(backend), task, parallel, progress) for task in tasks]


async def _marks(
    examiner: "_Examiner", task: Task, parallel: int, progress: Callable[[], object]
) -> list[Mark]:
    marks: list[Mark | None] = [None] * len(task.items)
    coming = iter(enumerate(task.items))

    async def work() -> None:
        for number, item in coming:
            try:
                marks[number] = await examiner.mark(item)
            except Rejected as error:
                raise ValueError(f"{task.name}, item {number + 1}: {error.message}") from error
            progress()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(parallel):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [mark for mark in marks if mark is not None]


class _Examiner:
    def __init__(self, backend: Backend) -> None:
        assert backend.tokenizer is not None
        self._backend = backend
        self._tokenizer = backend.tokenizer

    async def mark(self, item: Item) -> Mark:
        match item:
            case Piece():
                scores = await self._read(item.text)
                known = [score.logprob for score in scores if score.logprob is not None]
                return Mark(-sum(known), len(known))
            case Choice():
                likely = [await self._likely(item.prompt, choice) for choice in item.choices]
                return Mark(float(likely.index(max(likely)) == item.right))
            case Sample():
                sampling = Sampling(max_tokens=item.max_tokens, temperature=0.0)
                answer = text_of(await self._run(item.asked, None, sampling))
                return Mark(float(await good(item.checker, answer, _nobody)))

    async def _read(self, text: str) -> Sequence[TokenScore]:
        ids = await self._tokenizer.encode(Prompt(text=text))
        deltas = await self._run(Prompt(ids=tuple(ids)), ids, READ)
        return [score for delta in deltas for score in delta.prompt]

    async def _likely(self, prompt: str, choice: str) -> float:
        """The log-probability of the choice behind the prompt, by byte, so that long ones are not worse for that."""
        gap = "" if prompt[-1].isspace() else " "
        before = await self._tokenizer.encode(Prompt(text=prompt))
        whole = await self._tokenizer.encode(Prompt(text=f"{prompt}{gap}{choice}"))
        # A token may reach from the prompt into the choice.
        common = len(os.path.commonprefix([before, whole]))
        scores = await self._read(f"{prompt}{gap}{choice}")
        own = [score.logprob for score in scores[common:] if score.logprob is not None]
        return sum(own) / len(choice.encode())

    async def _run(self, prompt: Prompt, ids: list[int] | None, sampling: Sampling) -> list[Delta]:
        id = f"evaluate-{secrets.token_hex(4)}"
        generation = Generation(id=id, prompt=prompt, ids=ids, sampling=sampling, traffic="batch")
        async with contextlib.aclosing(self._backend.stream(generation)) as deltas:
            return [delta async for delta in deltas]


async def _nobody(question: str, answer: str) -> bool:
    raise ValueError("checker.kind: judge asks another model, which is not there")
