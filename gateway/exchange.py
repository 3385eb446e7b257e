"""What the layers of the front door know of one HTTP exchange; each adds what it learns."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from starlette.types import Scope

from backends.backend import Usage
from gateway.config import Tenant
from gateway.errors import ApiError
from gateway.ledger import Ledger
from gateway.request import Answer, Request

_KEY = "headrace.exchange"


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One call and what became of it."""

    id: str  # the x-request-id
    endpoint: str  # see `gateway.endpoints`
    route: str = "other"  # the path, with `{id}` for what is one
    headers: Mapping[str, str] = field(default_factory=dict)  # as the client sent them, names in lower case
    started: float = field(default_factory=time.monotonic)
    tenant: Tenant | None = None
    ledger: Ledger = field(default_factory=Ledger)
    requests: tuple[Request, ...] = ()  # once they are known: several where a call has several prompts
    answer: Answer | None = None
    first_text: float | None = None  # seconds from the call to the first text of its answer
    usage: Usage | None = None  # of a complete answer
    status: int = 0  # of the response, 499 where the client did not wait for it
    error: ApiError | None = None  # also one that ended a stream after its status was sent

    @property
    def seconds(self) -> float:
        """Since the call came."""
        return time.monotonic() - self.started


Observe = Callable[[Exchange, Scope], AbstractContextManager[None]]
"""Entered when a call comes, left when it is over; by then the exchange is complete."""


def headers_of(scope: Scope) -> Mapping[str, str]:
    """By name, of several the first. Made once, as a dozen of them are looked up for a call."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}


def attach(scope: Scope, exchange: Exchange) -> None:
    scope[_KEY] = exchange


def exchange_of(scope: Scope) -> Exchange:
    """Raises KeyError outside the front door."""
    exchange: Exchange = scope[_KEY]
    return exchange
