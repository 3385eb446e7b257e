"""What `/dashboard/state` says: the gateway at one moment. The page and `headrace top` both read it.

Totals are since the gateway's start and are those of `/metrics`. Money is in that of the price list.
"""

from typing import Literal

import msgspec

from backends.wire import GateState
from gateway.config import Price
from gateway.dashboard.history import Series

# Resting: it has failed, and nothing has succeeded since.
Condition = Literal["up", "busy", "starting", "resting", "down"]


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """What all parts share."""


class ReplicaState(_Part, frozen=True):
    """What only an engine of our own tells is None of others, and of an engine that has not spoken yet."""

    name: str
    model: str
    kind: Literal["engine", "remote"]
    condition: Condition
    in_flight: int  # generations that this gateway has running there
    waiting: int | None
    kv_used: float | None  # share of its KV blocks in use by sequences, 0 to 1
    hit_share: float | None  # of the prompt tokens looked up in its prefix cache, since its start
    restarts: int | None
    gates: tuple[GateState, ...] = ()  # of its speculation, for each kind of task that it has seen


class TierState(_Part, frozen=True):
    """Speeds are of the last ten minutes, the rate of the last ten seconds."""

    name: str
    ready: bool
    price: Price
    context_length: int
    answers: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: float
    tokens_per_second: float
    first_p50: float | None  # seconds
    first_p95: float | None
    replicas: tuple[ReplicaState, ...]
    series: Series


class RouteState(_Part, frozen=True):
    """How often a tier was chosen for a reason. `again`: for requests that had been sent elsewhere before."""

    tier: str
    reason: str
    count: int
    again: bool = False


class TenantState(_Part, frozen=True):
    """What a tenant has used in the last minute, through this gateway alone, beside its limits (None: unlimited).

    `requests`: less those that its limits have `refused`, of which they count nothing.
    """

    name: str
    requests: int
    refused: int
    tokens: int
    input_tokens: int
    output_tokens: int
    running: int
    requests_per_minute: int | None
    tokens_per_minute: int | None
    input_tokens_per_minute: int | None
    output_tokens_per_minute: int | None
    parallel: int | None
    spent_of_day: float  # of its budgets, as of a minute ago at most
    spent_of_month: float
    per_day: float | None
    per_month: float | None
    cost: float


class Brief(_Part, frozen=True):
    """A request that is over, in one line; `/dashboard/requests/{id}` has the rest."""

    id: str
    at: float
    endpoint: str
    tenant: str | None
    status: int
    code: str | None
    tier: str | None
    reason: str | None
    seconds: float
    first_text: float | None
    completion_tokens: int


class State(_Part, frozen=True):
    now: float  # Unix seconds
    uptime: float  # seconds
    version: str
    draining: bool
    troubles: tuple[str, ...]  # in words; empty where all is well
    running: int
    requests: int  # calls for an answer that are over
    failures: int  # of these, answered with 5xx or broken in mid-stream
    spent: float
    largest: float  # what the largest tier would have cost
    step: int  # seconds between two values of a series
    tiers: tuple[TierState, ...]
    routes: tuple[RouteState, ...]
    tenants: tuple[TenantState, ...]  # the busiest ones
    more_tenants: int  # that are not shown
    latest: tuple[Brief, ...]  # the newest first
