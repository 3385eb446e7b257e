"""Leaves in peace what does not answer, so that not every request waits for it in vain."""

import time
from collections.abc import Callable


class Breaker:
    """After `failures` in a row it allows one attempt per `rest` seconds, until an attempt succeeds."""

    def __init__(
        self, failures: int = 3, rest: float = 0.5, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._failures = failures
        self._rest = rest
        self._clock = clock
        self._failed = 0
        self._until = 0.0

    def allows(self) -> bool:
        """Whether to try now. A true answer while at rest begins another rest: one attempt probes for all."""
        if self._failed < self._failures:
            return True
        now = self._clock()
        if now < self._until:
            return False
        self._until = now + self._rest
        return True

    def succeeded(self) -> None:
        self._failed = 0

    def failed(self) -> None:
        self._failed += 1
        self._until = self._clock() + self._rest
