"""Faults to order, so that tests and drills can see what the rest of the system makes of them.

The environment variable `HEADRACE_FAULT` of an engine process holds one of
    crash_after_tokens:N   the process kills itself (SIGKILL) once it has answered with N tokens since its start
    stall_after_tokens:N   it stops working for good there, but goes on living
What the step in question had to say may or may not reach the gateway.
"""

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

VARIABLE = "HEADRACE_FAULT"


@dataclass(slots=True)
class Fault:
    """Strikes once `tokens` have been counted."""

    strike: Callable[[], None]
    tokens: int

    def count(self, tokens: int) -> None:
        self.tokens -= tokens
        if self.tokens <= 0:
            self.strike()


def fault_from(environment: Mapping[str, str]) -> Fault | None:
    """Raises ValueError when the variable holds anything else than the above."""
    order = environment.get(VARIABLE)
    if order is None:
        return None
    kind, _, tokens = order.partition(":")
    strike = {"crash_after_tokens": _crash, "stall_after_tokens": _stall}.get(kind)
    if strike is None or not tokens.isdecimal():
        raise ValueError(f"{VARIABLE}={order!r}: expected crash_after_tokens:N or stall_after_tokens:N")
    return Fault(strike, int(tokens))


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stall() -> None:
    while True:
        signal.pause()
