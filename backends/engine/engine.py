"""The engine: sequences in, tokens out, one step at a time.

It knows token ids and a vocabulary of bytes, nothing of text, sockets or the device; its runner has the model. One
thread calls it. What it promises:
    - an answer does not depend on what else runs, on chunks, on cached prefixes, or on having been preempted;
    - once `step` has told a generation's finish, or `abort` has returned, its blocks are back;
    - a failing step ends the sequences that were in it, never the engine.
"""

import itertools
import logging
import time
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Several

import msgspec

from backends.engine.admission import Limits, context_length, refusal
from backends.engine.batch import Batch, Runner, Seen
from backends.engine.cache import BlockCache
from backends.engine.compiling import Compile, Compiling
from backends.engine.division import Scheduled, work_of
from backends.engine.grammar import Constraint, GrammarError
from backends.engine.outcome import Outcome, outcomes
from backends.engine.overlap import Follow, Overlap, Step
from backends.engine.pace import CostModel
from backends.engine.queue_limits import QueueLimits
from backends.engine.scheduler import Scheduler
from backends.engine.sequence import Sequence
from backends.engine.speculation.drafter import Drafter
from backends.engine.speculation.speculator import Speculator
from backends.engine.stops import StopMatcher
from backends.engine.tally import Tally
from backends.wire import (
    EngineConfig,
    FinishReason,
    Grammar,
    Load,
    Output,
    Refused,
    Sampling,
    Submit,
)

SEED_STEP = (
    0xD1B54A32D192ED03  # odd, so that no two answers share a seed; far from the steps in `kernels.noise`
)
COMPILE_POLL = 0.005  # seconds that a step without work waits for a grammar, so that it hears what else comes
Told = list[tuple[bytes, Output]]  # what to tell which sender

_log = logging.getLogger(__name__)


class Engine:
    """Continuous batching over one runner. See `backends.wire` for what goes in and comes out."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        vocabulary: list[bytes],
        eos: frozenset[int],
        vocab_size: int,
        max_model_len: int,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.perf_counter,
        border: int | None = None,
        compile: Compile | None = None,
        drafters: Several[Drafter] = (),
        follow: Follow | None = None,
    ) -> None:
        """`vocabulary`: for each id its bytes, for stop strings; it may end before `vocab_size`, as padded ones do.

        `max_model_len`: the model's. The context is that, or what `config` allows or its blocks hold if that is
        less. `border`: the model's, see `sequence`. `compile` makes constraints of grammars, in another thread; without
        it they are refused. `drafters` are asked in order for what answers will say next. `follow`: the runner's, where
        its device works by itself, see `overlap`. Raises ValueError when a limit in `config` leaves no room to work.
        """
        self._name = config.name
        self._runner = runner
        self._vocabulary = vocabulary + [b""] * (vocab_size - len(vocabulary))
        self._eos = eos
        self._clock = clock
        self._timer = timer
        self._vocab_size = vocab_size
        self._border = border
        self._queue_limits = QueueLimits(config.max_waiting, config.max_waiting_tokens)
        self._tally = Tally(len(config.bands))
        self._cache = BlockCache(
            config.kv_blocks, config.block_size, config.tenant_share, config.session_share
        )
        self._model = CostModel()
        self._scheduler = Scheduler(self._cache, config, self._model)
        self._speculator = Speculator(config.speculation, drafters, self._model, self._cache, timer)
        self._overlap = Overlap(None if drafters else follow, self._cache)
        self._compiling = Compiling(compile or _without_grammars)
        self._refusals: list[tuple[bytes, Refused]] = []
        self._limits = Limits(
            vocab_size, context_length(config, max_model_len), eos, grammars=compile is not None
        )
        self._live: dict[
            tuple[bytes, str], list[Sequence]
        ] = {}  # the answers to one prompt that have not ended
        self._numbers = itertools.count()

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together."""
        return self._limits.context_length

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._live)

    def submit(self, sender: bytes, submit: Submit) -> Refused | None:
        """Take work in; None when it will run, but for a grammar that turns out to be wrong, see `refusals`.

        An answer that would not fit the context ends where that ends.
        """
        if (sender, submit.id) in self._live:
            return Refused(id=submit.id, code="invalid", message="id: a generation with this id is running")
        refused = refusal(submit, self._limits)
        if refused is None:
            refused = self._overload(submit)
        if refused is None:
            answers = [self._sequence(sender, submit, index) for index in range(submit.sampling.n)]
            first, *first.followers = self._live[sender, submit.id] = answers
            self._begin(first)
        return refused

    def _begin(self, sequence: Sequence) -> None:
        grammar = sequence.sampling.grammar
        if grammar is None:
            self._scheduler.add(sequence)
        else:
            self._compiling.order(sequence, grammar)

    def _overload(self, submit: Submit) -> Refused | None:
        """Why there is no place in the queue for `submit`; None where there is."""
        waiting = self._scheduler.waiting
        rows = self._scheduler.free_rows(batch=submit.traffic == "batch")
        excess = self._queue_limits.excess(waiting, self._compiling.sequences, submit, rows)
        if excess is None:
            return None
        self._tally.refused(excess.reason)
        retry_after = self._tally.patience(len(waiting), self._clock())
        return Refused(id=submit.id, code="overloaded", message=excess.message, retry_after=retry_after)

    def _sequence(self, sender: bytes, submit: Submit, index: int) -> Sequence:
        now = self._clock()
        sampling = answer_sampling(submit.sampling, index)
        sequence = Sequence(
            sender=sender,
            id=submit.id,
            ids=array("I", submit.prompt),
            prompt_length=len(submit.prompt),
            sampling=sampling,
            ends=frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self._eos),
            max_length=min(len(submit.prompt) + sampling.max_tokens, self.context_length),
            number=next(self._numbers),
            arrived=now,
            salt=submit.salt,
            task=submit.task,
            tenant=submit.tenant,
            session=submit.session,
            weight=submit.weight,
            batch=submit.traffic == "batch",
            priority=submit.priority,
            deadline=None if submit.timeout is None else now + submit.timeout,
            stops=StopMatcher(stop.encode() for stop in sampling.stop) if sampling.stop else None,
            seen=Seen.of(submit.prompt, sampling),
            index=index,
            border=self._border,
            steps=[] if submit.steps else None,
        )
        if sequence.outgrown:
            sequence.stretch()
        return sequence

    def abort(self, sender: bytes, id: str) -> None:
        """Drop a generation, wherever it is; what it has computed stays cached. Unknown ids are ignored."""
        for sequence in list(self._live.get((sender, id), ())):
            self._remove(sequence, "abort", self._clock(), keep=True)

    def abort_sender(self, sender: bytes) -> None:
        """Drop all generations of one sender."""
        for key in [key for key in self._live if key[0] == sender]:
            self.abort(*key)

    def step(self) -> Told:
        """Give every sequence that is scheduled some tokens. Returns what there is to tell, for which sender."""
        told = self._expire()
        self._take_compiled()
        step = self._overlap.take()
        if step is None:
            self._speculator.prepare(self._scheduler.queues.rows(), idle=not self._scheduler.waiting)
        began = self._timer()
        step = step or self._plan()
        if step is None:
            if self._compiling:
                self._compiling.wait(COMPILE_POLL)
            return told
        started = self._clock()
        try:
            step, brought = step.alive(self._run(step))
        except Exception as error:
            _log.exception("a step of %d rows failed", len(step.scheduled))
            return told + self._fail(step.scheduled, error)
        seconds = self._timer() - began
        work = work_of(step.scheduled)
        self._tally.step(step.scheduled, started, self._scheduler.bands.index)
        self._speculator.learn(step.scheduled, step.batch, brought, work, seconds)
        self._model.learn(work, seconds)
        self._tally.ran(step.scheduled, started, self._clock())
        return told + self._emit(step.scheduled, brought)

    def _plan(self) -> Step | None:
        """What is to run now; None where nothing is."""
        self._speculator.propose()
        scheduled = self._scheduler.schedule()
        return Step(scheduled, Batch([each.row(count) for each, count in scheduled])) if scheduled else None

    def _run(self, step: Step) -> list[Outcome]:
        """Launch a step, unless that was done; then the next one, if it is clear; and wait for the first."""
        if step.pending is None:
            step.pending = self._runner.launch(step.batch)
        if not self._scheduler.waiting and not self._compiling:
            self._overlap.launch_next(step, self._scheduler.queues.rows())
        return outcomes(self._runner, step.batch, step.pending, self._vocab_size)

    def _expire(self) -> Told:
        """End what is past its deadline, waiting or running; its last output has what was held back."""
        now = self._clock()
        live = itertools.chain.from_iterable(self._live.values())
        late = [each for each in live if each.deadline is not None and now >= each.deadline]
        return [self._end(sequence, "deadline", now) for sequence in late]

    def _take_compiled(self) -> None:
        """Schedule the sequences whose grammar is compiled; refuse those where that has failed."""
        for sequence, result in self._compiling.take():
            if isinstance(result, GrammarError):
                del self._live[sequence.sender, sequence.id]
                refused = Refused(id=sequence.id, code="invalid", message=f"sampling.grammar: {result}")
                self._refusals.append((sequence.sender, refused))
            else:
                self._constrain(sequence, result)
                self._scheduler.add(sequence)

    def _constrain(self, sequence: Sequence, constraint: Constraint) -> None:
        sequence.constraint = constraint
        for follower in sequence.followers:
            follower.constraint = constraint.copy()

    def _fail(self, scheduled: list[Scheduled], error: Exception) -> Told:
        """End all that run in a failed step. What it wrote is unknown, so their own blocks are not cached."""
        now = self._clock()
        message = f"a step failed with {type(error).__name__}, see the engine's log"
        return [self._end(sequence, "error", now, message) for sequence, _ in scheduled if sequence.running]

    def _emit(self, scheduled: list[Scheduled], brought: list[Outcome]) -> Told:
        now = self._clock()
        told: Told = []
        for (sequence, count), outcome in zip(scheduled, brought, strict=True):
            sequence.measure(outcome)
            sequence.computed += min(count, sequence.remaining)
            if sequence.computed <= sequence.prompt_length:
                self._cache.store(sequence)  # at once, for whoever else begins like this
            if not sequence.unscored and sequence.computed >= sequence.prompt_length:
                self._follow(sequence)
            if outcome.tokens:
                told += self._accept(sequence, outcome.tokens, now)
            elif not sequence.remaining:  # no answer was wanted
                told.append(self._end(sequence, "length", now))
        return told

    def _follow(self, sequence: Sequence) -> None:
        """Start the other answers to its prompt, which they find in the cache now."""
        for follower in sequence.followers:
            self._scheduler.add(follower)
        sequence.followers = []

    def _accept(self, sequence: Sequence, tokens: list[int], now: float) -> Told:
        """All `tokens` but the last one were run in the step, and stand where they were drafted."""
        for place, token in enumerate(tokens):
            sequence.computed += min(place, 1)
            self._tally.token(sequence, now, self._scheduler.bands.target(sequence.band))
            try:
                finish = sequence.accept(token, self._vocabulary[token])
            except GrammarError as error:
                return [self._end(sequence, "error", now, fault=f"sampling.grammar: {error}")]
            if finish is not None:
                return [self._end(sequence, finish, now)]
        ids = sequence.tell(self._vocabulary)
        if not ids and not sequence.prompt_due:
            return []
        return [(sequence.sender, sequence.output(ids))]

    def _end(
        self,
        sequence: Sequence,
        finish: FinishReason,
        now: float,
        error: str | None = None,
        fault: str | None = None,
    ) -> tuple[bytes, Output]:
        self._remove(sequence, finish, now, keep=error is None)
        output = msgspec.structs.replace(
            sequence.output(sequence.tell_all()),
            finish=finish,
            trim=sequence.trim,
            error=error,
            fault=fault,
            timings=sequence.timings(now),
        )
        return sequence.sender, output

    def _remove(self, sequence: Sequence, finish: FinishReason, now: float, *, keep: bool) -> None:
        key = sequence.sender, sequence.id
        self._live[key].remove(sequence)
        if not self._live[key]:
            del self._live[key]
        self._follow(sequence)
        if sequence in self._compiling:
            self._compiling.cancel(sequence)
        else:
            self._scheduler.remove(sequence, keep=keep)
        self._speculator.forget(sequence)
        self._tally.end(sequence, finish, now)

    def refusals(self) -> list[tuple[bytes, Refused]]:
        """Submissions that were taken in and have turned out not to run since the last call, by sender."""
        refusals, self._refusals = self._refusals, []
        return refusals

    def cache_changes(self) -> tuple[list[bytes], list[bytes]]:
        """Keys of blocks that entered and that left the prefix cache since the last call."""
        return self._cache.changes()

    def cache_keys(self) -> list[bytes]:
        """Keys of all blocks in the prefix cache."""
        return self._cache.keys()

    def load(self) -> Load:
        """How busy it is, and its counters; it knows nothing of incarnations."""
        queues = self._scheduler.queues
        return Load(
            engine=self._name,
            incarnation="",
            running=len(queues.running),
            running_batch=sum(sequence.batch for sequence in queues.running),
            paused=len(queues.running) - len(queues.rows()),
            waiting=len(queues.waiting) + len(self._compiling),
            deferred=len(self._compiling),
            waiting_batch=sum(sequence.batch for sequence in queues.waiting),
            waiting_tokens=queues.waiting.tokens,
            band=self._scheduler.bands.index,
            blocks_total=self._cache.total,
            blocks_free=self._cache.free,
            blocks_cached=self._cache.evictable,
            prefix_queries=queues.queries,
            prefix_hits=queues.hits,
            preemptions=queues.preemptions,
            step_error=self._model.error,
            step_budget=self._scheduler.step_budget,
            **self._tally.fields(),
            **self._speculator.fields(),
        )

    def check(self) -> None:
        """Recompute every invariant from scratch. Raises AssertionError where one does not hold."""
        self._scheduler.check()
        queued = [*self._scheduler.running, *self._scheduler.waiting]
        following = [follower for sequence in queued for follower in sequence.followers]
        live = list(itertools.chain.from_iterable(self._live.values()))
        assert {id(sequence) for sequence in queued + following} <= {id(sequence) for sequence in live}
        aside = [sequence for sequence in live if sequence in self._compiling]
        following += [follower for sequence in aside for follower in sequence.followers]
        assert len(live) == len(queued) + len(following) + len(aside)
        for sequence in live:
            sequence.check()
            assert sequence.max_length <= self.context_length


def answer_sampling(sampling: Sampling, index: int) -> Sampling:
    """How one of several answers to a prompt is sampled: each with a seed of its own, the first with the given one."""
    if not index:
        return sampling
    seed = (sampling.seed + index * SEED_STEP) % 2**64
    return msgspec.structs.replace(sampling, seed=seed, prompt_logprobs=False, signals=False)


def _without_grammars(grammar: Grammar) -> Constraint:
    raise GrammarError("this engine does not constrain its answers")
