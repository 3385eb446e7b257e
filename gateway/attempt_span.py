"""The span of one attempt: what was asked of a replica, and what came of it."""

import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Protocol

import msgspec

from backends.backend import BackendError, Delta, Generation, Timings, Usage
from backends.wire import StepRun
from gateway.conventions import PROVIDER
from gateway.ledger import ABORTED, ANSWERED, RUNNING, Entry
from gateway.span_encoding import Attributes
from gateway.spans import CLIENT, Span, Tracer, mark
from gateway.tiers import Replica

MAX_INT = 2**63 - 1  # of OTLP; a larger one would cost its whole batch

Deltas = AsyncGenerator[Delta, None]


class Followed(Protocol):
    """An attempt whose deltas are there inside the block. Whoever reads them shows each one to `see`.

    It follows without a generator of its own: each between a backend and a client costs every delta its turn.
    """

    def __enter__(self) -> Deltas: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None: ...

    def see(self, delta: Delta) -> None: ...


class Unfollowed:
    """One that is not traced, though others may be whose trace goes through here."""

    def __init__(self, replica: Replica, generation: Generation, above: Span) -> None:
        self._replica = replica
        self._generation = _below(above, generation)

    def __enter__(self) -> Deltas:
        return self._replica.backend.stream(self._generation)

    def __exit__(self, *_: object) -> None: ...

    def see(self, delta: Delta) -> None: ...


class AttemptSpan:
    """From the moment that it begins. The outcome is told at the end: whoever judges the answer, or does not wait for
    it, has entered it by then."""

    def __init__(
        self,
        tracer: Tracer,
        above: Span,
        names: Mapping[str, str],
        entry: Entry,
        replica: Replica,
        generation: Generation,
    ) -> None:
        """`names`: of attributes, see `gateway.conventions`."""
        self._tracer = tracer
        self._above = above
        self._names = names
        self._entry = entry
        self._replica = replica
        self._generation = generation
        self._begun = False
        self._reasons: list[str] = []  # why each answer ended
        self._tokens = 0
        self._finished = False
        self._failure: str | None = None

    def __enter__(self) -> Deltas:
        operation = "chat" if self._generation.prompt.is_conversation else "text_completion"
        name = f"{operation} {self._entry.tier}"
        self._started = time.monotonic()
        self._span = self._tracer.start(name, self._above, kind=CLIENT)
        if self._span.is_recording():
            self._span.set_attributes(self._asked(operation))
        return self._replica.backend.stream(_below(self._span, self._generation))

    def _asked(self, operation: str) -> Attributes:
        names, generation, sampling = self._names, self._generation, self._generation.sampling
        told: Attributes = {
            names["operation"]: operation,
            names["provider"]: PROVIDER,
            names["tier"]: self._entry.tier,
            names["model"]: self._replica.model,
            names["id"]: generation.id,
            names["max_tokens"]: sampling.max_tokens,
            names["temperature"]: sampling.temperature,
            names["top_p"]: sampling.top_p,
            "headrace.tier": self._entry.tier,
            "headrace.replica": self._replica.name,
        }
        if sampling.top_k:
            told[names["top_k"]] = sampling.top_k
        if sampling.seed <= MAX_INT:
            told[names["seed"]] = sampling.seed
        return told

    def see(self, delta: Delta) -> None:
        if not self._begun:
            self._begun = True
            self._span.set_attribute(self._names["first_chunk"], time.monotonic() - self._started)
        self._tokens += delta.tokens
        if delta.finish is not None:
            self._reasons.append(delta.finish)
        if delta.usage is not None:
            self._finish(delta, delta.usage)

    def _finish(self, delta: Delta, usage: Usage) -> None:
        self._finished = True
        names = self._names
        self._span.set_attributes({
            names["finish"]: self._reasons,
            names["prompt_tokens"]: usage.prompt_tokens,
            names["completion_tokens"]: usage.completion_tokens,
            names["cached_tokens"]: usage.cached_tokens,
        })  # fmt: skip
        if delta.timings is not None:
            self._stages(delta.timings)

    def _stages(self, times: Timings) -> None:
        """The last one that has begun lasts until the end, wherever that came."""
        if not self._span.is_recording():
            return
        stages = (
            ("engine.queue", times.arrived, times.scheduled or times.finished),
            ("engine.prefill", times.scheduled, times.first_token or times.finished),
            ("engine.decode", times.first_token, times.finished),
        )
        for name, begin, end in stages:
            if begin is not None and end is not None:
                stage = self._tracer.start(name, self._span, at=_nanoseconds(begin))
                self._steps(stage, [step for step in times.steps if begin < step.ended <= end])
                stage.end(_nanoseconds(end))

    def _steps(self, stage: Span, steps: Iterable[StepRun]) -> None:
        for step in steps:
            told: Attributes = {
                "headrace.step.tokens": step.tokens,
                "headrace.step.rows": step.rows,
                "headrace.step.total_tokens": step.total,
            }
            at = _nanoseconds(step.began)
            self._tracer.start("engine.step", stage, attributes=told, at=at).end(_nanoseconds(step.ended))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        if error is not None:
            mark(self._span, error)
        if isinstance(error, BackendError):
            self._failure = error.code
            if error.timings is not None:
                self._stages(error.timings)
        if not self._finished:
            self._span.set_attribute(self._names["completion_tokens"], self._tokens)
        self._span.set_attributes({"headrace.complete": self._finished, "headrace.outcome": self._outcome})
        if self._entry.confidence is not None:
            self._span.set_attribute("headrace.confidence", self._entry.confidence)
        self._span.end()

    @property
    def _outcome(self) -> str:
        if self._entry.outcome != RUNNING:
            return self._entry.outcome
        return self._failure or (ANSWERED if self._finished else ABORTED)


def _below(span: Span, generation: Generation) -> Generation:
    """With the trace context that tells the backend of the span, if anything is traced."""
    traceparent = span.traceparent
    return generation if traceparent is None else msgspec.structs.replace(generation, traceparent=traceparent)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
