"""A replica in an engine process of our own, seen as a Backend: text out, token ids and messages hidden."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial

import msgspec

from backends.backend import (
    BackendError,
    DeadlineExceeded,
    Delta,
    Generation,
    Rejected,
    Unavailable,
    at_once,
)
from backends.deltas import DeltaReader
from backends.link import EngineLink, EngineLost
from backends.prompt import Prompt
from backends.tokenizer import TemplateError, Tokenizer
from backends.tools.constraint import Unconstrainable, constrained
from backends.tools.parser import CallParser
from backends.wire import Abort, EngineConfig, Event, Load, Output, Outputs, Refused, Sampling, Submit

RECONNECT = 0.1  # seconds between the end of one link and the next
GRACE = 1.0  # seconds that an engine may be late with "deadline" before it is taken to hang

_log = logging.getLogger(__name__)

Inbox = asyncio.Queue[Output | Refused | BackendError]


class LocalBackend:
    """Client of one engine process. Any number of generations run at once; the engine batches them."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer,
        context_length: int,
        on_event: Callable[[Event], None],
        start_timeout: float = 10.0,
    ) -> None:
        """`config` as the engine was started with. `on_event` gets its cache events, without gaps, and its load.

        A Snapshot comes first after each start of the engine, and again after events were lost.
        """
        self._config = config
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._on_event = on_event
        self._start_timeout = start_timeout
        self._inboxes: dict[str, Inbox] = {}
        self._numbers = itertools.count()
        self._link: EngineLink | None = None
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self._config.name

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def context_length(self) -> int:
        return self._context_length

    @property
    def takes_tools(self) -> bool:
        """Calls have to be found in the model's answers, so their format has to be known."""
        return self._tokenizer.tools.format is not None

    def refusal(self, prompt: Prompt, sampling: Sampling) -> None:
        """An engine of our own honours everything."""

    @property
    def available(self) -> bool:
        """True from an engine's first answer until it is gone."""
        return self._ready.is_set()

    @property
    def tripped(self) -> bool:
        return False

    @property
    def recovering(self) -> bool:
        """The supervisor starts a dead engine again."""
        return self._task is not None and not self.available

    @property
    def in_flight(self) -> int:
        return len(self._inboxes)

    async def start(self) -> None:
        """Connect; returns when the engine answers. Raises Unavailable when it does not in time."""
        form = self._tokenizer.tools.format
        _log.info("%s: tool calls: %s", self.name, "none known" if form is None else f"format {form.name}")
        self._task = asyncio.create_task(self._keep_linked(), name=f"link to {self.name}")
        try:
            async with asyncio.timeout(self._start_timeout):
                await self._ready.wait()
        except TimeoutError:
            await self.close()
            raise Unavailable(f"engine {self.name} did not answer within {self._start_timeout:g} s") from None

    async def close(self) -> None:
        """Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def stream(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        """As `backends.backend.Backend`. A delta comes when there is text; it may stand for several tokens, as it does
        where the gateway is behind."""
        ids = await self._ids(generation)
        sampling, parser = self._tools(generation)
        answer = DeltaReader(self.name, ids, sampling, self._tokenizer, parser)
        id, inbox = self._open(generation, ids, sampling)
        hung = self._expect_end(generation.timeout, inbox)
        try:
            while not answer.ended:
                for delta in at_once(_come(answer, await inbox.get(), inbox)):
                    yield delta
        finally:
            if hung is not None:
                hung.cancel()
            del self._inboxes[id]
            if not answer.ended:
                self._abort(id)

    async def warm(self, generation: Generation) -> bool:
        """As `backends.backend.Backend`."""
        ids = await self._ids(generation)
        reading = msgspec.structs.replace(
            generation, ids=ids, prompt=Prompt(ids=()), sampling=Sampling(max_tokens=0), traffic="batch"
        )
        async with contextlib.aclosing(self.stream(reading)) as deltas:
            async for _ in deltas:
                pass
        return True

    async def _ids(self, generation: Generation) -> list[int]:
        if generation.ids is not None:
            return generation.ids
        try:
            return await self._tokenizer.encode(generation.prompt)
        except TemplateError as error:
            raise Rejected(str(error), "invalid_prompt") from error

    def _tools(self, generation: Generation) -> tuple[Sampling, Callable[[], CallParser] | None]:
        """The sampling that makes calls come as they should, and what finds them."""
        prompt, form = generation.prompt, self._tokenizer.tools.format
        if not prompt.tools:
            return generation.sampling, None
        if form is None:
            raise Rejected("tools: this model writes no calls in a known format", "unsupported_parameter")
        try:
            sampling = constrained(generation.sampling, prompt, form, self._tokenizer.id_of)
        except Unconstrainable as error:
            raise Rejected(str(error), "unsupported_parameter") from error
        if prompt.tool_choice.mode == "none":
            return sampling, None
        unmarked = not form.begin or (form.bare and sampling.grammar is None)
        bare = frozenset(tool.name for tool in prompt.callable_tools) if unmarked else frozenset[str]()
        return sampling, partial(CallParser, form, parallel=prompt.tool_choice.parallel, bare=bare)

    def _open(self, generation: Generation, ids: list[int], sampling: Sampling) -> tuple[str, Inbox]:
        """Hand the work to the engine, under an id that is never used again, so that no late answer can be mistaken."""
        if self._link is None or not self.available:
            raise Unavailable(f"engine {self.name} is not running")
        submit = Submit(
            id=f"{generation.id}/{next(self._numbers)}",
            prompt=ids,
            sampling=sampling,
            salt=generation.salt,
            tenant=generation.tenant,
            session=generation.session,
            task=generation.task,
            weight=generation.weight,
            traffic=generation.traffic,
            priority=generation.priority,
            timeout=generation.timeout,
            steps=generation.steps,
        )
        try:
            self._link.send(submit)
        except EngineLost as lost:
            raise Unavailable(f"engine {self.name} is not running") from lost
        inbox = self._inboxes[submit.id] = Inbox()
        return submit.id, inbox

    def _expect_end(self, timeout: float | None, inbox: Inbox) -> asyncio.TimerHandle | None:
        """The engine watches the deadline itself; this is for one that hangs."""
        if timeout is None:
            return None
        error = DeadlineExceeded(f"engine {self.name} did not end in time")
        return asyncio.get_running_loop().call_later(timeout + GRACE, inbox.put_nowait, error)

    def _abort(self, id: str) -> None:
        if self._link is not None:
            with contextlib.suppress(EngineLost):  # then nothing runs there either
                self._link.send(Abort(id=id))

    async def _keep_linked(self) -> None:
        """One link after the other, for ever: the supervisor sees to it that there is an engine again."""
        while True:
            try:
                self._link = EngineLink(self._config, self._answer, self._event, keys=True)
                await self._link.run()
            except Exception:
                _log.exception("%s: the link failed", self.name)
            finally:
                self._lose()
            await asyncio.sleep(RECONNECT)

    def _lose(self) -> None:
        self._link = None
        self._ready.clear()
        for inbox in self._inboxes.values():
            inbox.put_nowait(Unavailable(f"engine {self.name} died"))

    def _answer(self, message: Outputs | Refused) -> None:
        if isinstance(message, Refused):
            if (inbox := self._inboxes.get(message.id)) is not None:
                inbox.put_nowait(message)
            return
        for output in message.items:
            if (inbox := self._inboxes.get(output.id)) is not None:
                inbox.put_nowait(output)
            elif output.finish is None:
                self._abort(output.id)  # nobody waits for it

    def _event(self, event: Event) -> None:
        if isinstance(event, Load):
            self._ready.set()
        try:
            self._on_event(event)
        except Exception:
            _log.exception("%s: nobody could use a %s event", self.name, type(event).__name__)


def _come(
    answer: DeltaReader, message: Output | Refused | BackendError | None, inbox: Inbox
) -> Iterator[Delta]:
    """What is said by this message and those that lie behind it. Raises BackendError."""
    while message is not None:
        if (delta := answer.take(message)) is not None:
            yield delta
        message = None if answer.ended or inbox.empty() else inbox.get_nowait()
