"""Faults to order, so that tests and drills can see what the rest of the system makes of them.

The environment variable `HEADRACE_FAULT` of an engine process holds one of
    crash_after_tokens:N    the process kills itself (SIGKILL) once it has answered with N tokens since its start
    stall_after_tokens:N    it stops working for good there, but goes on living
    fail_after_steps:N      the model raises RuntimeError in the step that follows N others, once
    exhaust_after_steps:N   it raises MemoryError there, once
What the step of a crash or a stall had to say may or may not reach the gateway. Unset, none of this costs anything.
"""

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backends.engine.batch import Batch, Runner
from backends.wire import Score, Signal

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


class FailingRunner:
    """A runner that raises `error` once, instead of the step that follows `steps` others."""

    def __init__(self, runner: Runner, steps: int, error: type[Exception]) -> None:
        self._runner = runner
        self._steps = steps
        self._error = error

    def launch(self, batch: Batch) -> Any:
        """Raises the error, or what the runner raises."""
        self._steps -= 1
        if self._steps == -1:
            raise self._error(f"ordered by {VARIABLE}")
        return self._runner.launch(batch)

    def collect(self, pending: Any) -> list[list[int]]:
        """As `batch.Runner`."""
        return self._runner.collect(pending)

    def scores(self, pending: Any) -> list[list[Score]]:
        """As `batch.Runner`."""
        return self._runner.scores(pending)

    def signals(self, pending: Any) -> list[list[Signal]]:
        """As `batch.Runner`."""
        return self._runner.signals(pending)


def fault_from(environment: Mapping[str, str]) -> Fault | None:
    """What is to happen after so many tokens, if anything. Raises ValueError where the order makes no sense."""
    kind, count = _order(environment)
    strike = _STRIKES.get(kind)
    return None if strike is None else Fault(strike, count)


def with_fault(runner: Runner, environment: Mapping[str, str]) -> Runner:
    """The runner with the fault that is to happen after so many steps, or as it is. Raises as `fault_from`."""
    kind, count = _order(environment)
    error = _ERRORS.get(kind)
    return runner if error is None else FailingRunner(runner, count, error)


def _order(environment: Mapping[str, str]) -> tuple[str, int]:
    order = environment.get(VARIABLE)
    if order is None:
        return "", 0
    kind, _, count = order.partition(":")
    kinds = [*_STRIKES, *_ERRORS]
    if kind not in kinds or not count.isdecimal():
        raise ValueError(f"{VARIABLE}={order!r}: expected {' or '.join(f'{kind}:N' for kind in kinds)}")
    return kind, int(count)


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stall() -> None:
    while True:
        signal.pause()


_STRIKES: Mapping[str, Callable[[], None]] = {"crash_after_tokens": _crash, "stall_after_tokens": _stall}
_ERRORS: Mapping[str, type[Exception]] = {
    "fail_after_steps": RuntimeError,
    "exhaust_after_steps": MemoryError,
}
