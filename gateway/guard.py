"""Between a server and the stores in it: one that fails is left in peace, so that not every request waits."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from backends.breaker import Breaker
from gateway.pulse import LONG, SILENT, Pulse

T = TypeVar("T")

FAILURES = 3  # in a row
PAUSE = 0.5  # seconds


class _Slow(Exception):
    """This answer takes too long, and the server answers others."""


class Guard:
    """One server's. A single silence is enough to leave it in peace; see `gateway.pulse`."""

    def __init__(self, breaker: Breaker | None = None, pulse: Pulse | None = None) -> None:
        """`breaker`: by default one that opens after `FAILURES` for `PAUSE`. Without a `pulse`, answers may take as
        long as they do: those of files."""
        self._breaker = breaker or Breaker(failures=FAILURES, pause=PAUSE)
        self._pulse = pulse

    async def ask(
        self,
        question: Coroutine[Any, Any, T],
        *,
        failures: type[Exception],
        answers: tuple[type[Exception], ...],
        resting: Exception | None = None,
        hurried: bool = False,
    ) -> T:
        """The answer. Raises `resting` where nothing may be asked now, and `failures` where the server is silent
        or slow, which for who is `hurried` it is sooner.

        `failures`: what `question` raises of a server that is down; `answers`: of which only one that works can tell.
        """
        resting = resting or failures("the store is left in peace after several failures")
        silence = failures("the store is silent")
        try:
            with self._breaker.asking(failures=failures, answers=answers, resting=resting):
                if self._pulse is None:
                    return await question
                return await self._pulse.heard(question, silence, _Slow(), SILENT if hurried else LONG)
        except _Slow:
            raise failures("the store is slow") from None
        except failures as error:
            if error is silence:
                self._breaker.trip()
            if self._pulse is not None and error is not resting:
                self._pulse.feel()
            raise
        finally:
            question.close()  # where it was not even asked
