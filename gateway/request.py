"""What the dialects and the dispatcher say to each other: `Request`, `Route`, `Answer`, `Card`."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from backends.backend import Delta, Prompt, Traffic
from backends.wire import Grammar
from classifier import Assessment, Task
from gateway.config import Price, Tenant
from gateway.ledger import Ledger

Endpoint = Literal["chat", "completions", "responses", "messages"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a client, freed of its dialect. Ranges are checked by then."""

    id: str  # the x-request-id, ours
    endpoint: Endpoint
    tenant: Tenant
    model: str  # "auto", a tier's name, or an alias, as the client wrote it
    prompt: Prompt
    prompt_field: str = "messages"  # the client's name for the prompt, for errors
    result_fields: tuple[
        str, ...
    ] = ()  # and for which call each result of a tool is of, of the prompt's last ones
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # off
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = {}
    min_tokens: int = 0
    n: int = 1
    logprobs: int | None = None  # alternatives told with each token's; None: no logprobs
    prompt_logprobs: bool = False
    grammar: Grammar | None = None
    grammar_field: str = "response_format"  # the client's name for where it comes from, for errors
    session: str | None  # "new", an id, or None
    answered_by: str | None = None  # the tier whose calls the prompt answers, where what is stored tells
    timeout: float  # seconds
    steps: bool = False  # the engine's, in its trace
    task: Task | None = None  # of what kind it is, where the client says so
    streamed: bool = False  # whether the client sees the answer while it is made
    traffic: Traffic = "interactive"
    priority: int
    ledger: Ledger = msgspec.field(default_factory=Ledger)  # filled in while it runs


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Where an attempt goes and why. `order` holds the tiers to try, the first one first; `weight`: the λ that it was
    chosen by, if it was."""

    order: tuple[str, ...]
    reason: str  # in words, for the header `x-headrace-reason`: printable ASCII, no prompt text
    assessment: Assessment | None  # None where the client named the tier, or a tool loop keeps it
    weight: float | None = None
    shadows: Mapping[str, str] = {}  # the tier that each shadow policy would take


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """How the answer of a route's first tier would be judged, or `why_not` in words.

    `after`: so many tokens; `at_end`: whether whole answers are; `threshold`: None where it is weighed whether a dearer
    tier's answer is worth its cost; `next`: the tier that would take over, if that is not found to do no better.
    """

    why_not: str | None = None
    when: Literal["hold", "end"] | None = None
    after: tuple[int, ...] = ()
    at_end: bool = False
    threshold: float | None = None
    next: str | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A route that nobody runs, what it was decided by, tokens of the prompt by tier, and what would be judged."""

    route: Route
    judged: Judged
    prompt_tokens: Mapping[str, int]
    cached_tokens: Mapping[str, int]


class Deltas(Protocol):
    """The deltas of one answer, of which the last one has the usage.

    `remember` stores what was said, and is for an answer that is complete; `aclose` does so of any other, aborts what
    still runs, and settles. Both may be called twice.
    """

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    async def __anext__(self) -> Delta: ...

    async def remember(self) -> None: ...

    async def aclose(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class Answer:
    """An answer that has begun: the first delta is there, or its error would have been raised.

    `deltas` must be closed (`contextlib.aclosing`); closing it aborts the work, settles and remembers.
    After the first delta it may still raise BackendError: then an error frame ends the stream.
    """

    id: str  # of the request
    created: int  # Unix seconds
    tier: str
    route: Route
    session: str | None
    spelled: tuple[str, ...] = ("",)  # the prompts as text, where they came as token ids
    headers: dict[str, str] = field(default_factory=dict)  # x-headrace-*, x-ratelimit-*, x-session-id
    deltas: Deltas


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What `/v1/models` and `/readyz` say of a tier. `models`: what its replicas serve."""

    name: str
    models: tuple[str, ...]
    context_length: int
    price: Price
    ready: bool
