"""Leaves alone for a while what fails, then tries it with one request. Pure: the clock is injected."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FAILURES = 5  # in a row
PAUSE = 5.0  # seconds


class Breaker:
    """Closed until `failures` in a row; open for `pause` seconds; then half open: one trial at a time.

    Each request calls `enter`, any of `alive`, `succeeded` and `failed`, and `leave`. A request that ends without one
    of these (the client went away) tells nothing.
    """

    def __init__(
        self, *, failures: int = FAILURES, pause: float = PAUSE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = failures
        self._pause = pause
        self._clock = clock
        self._failures = 0
        self._until = 0.0
        self._trying = False

    @property
    def allows(self) -> bool:
        """Whether a request may be tried now."""
        return self._closed or (not self._trying and self._clock() >= self._until)

    @property
    def open(self) -> bool:
        """Too many have failed, and nothing has succeeded since."""
        return not self._closed

    @property
    def _closed(self) -> bool:
        return self._failures < self._most

    def enter(self) -> bool:
        """Whether the request that begins is a trial; `leave` wants to know."""
        trial = not self._closed
        self._trying = self._trying or trial
        return trial

    def alive(self) -> None:
        """The server answers. Closes an open breaker, but for one more failure."""
        self._failures = min(self._failures, self._most - 1)

    def succeeded(self) -> None:
        """A whole answer came."""
        self._failures = 0

    def failed(self) -> None:
        self._failures += 1
        if not self._closed:
            self._until = self._clock() + self._pause

    def trip(self) -> None:
        """Open at once."""
        self._failures = self._most - 1
        self.failed()

    def leave(self, trial: bool) -> None:
        if trial:
            self._trying = False

    @contextmanager
    def asking(
        self, *, failures: type[Exception], answers: tuple[type[Exception], ...], resting: Exception
    ) -> Iterator[None]:
        """One question inside the block. Raises `resting` without asking where nothing may be tried now.

        `failures`: errors of what is down; `answers`: those of which only what works can tell. Any other tells nothing.
        """
        if not self.allows:
            raise resting
        trial = self.enter()
        try:
            yield
        except answers:
            self.succeeded()
            raise
        except failures:
            self.failed()
            raise
        else:
            self.succeeded()
        finally:
            self.leave(trial)
