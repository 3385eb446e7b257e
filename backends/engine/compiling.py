"""Sequences that stand aside until their grammar is compiled, in a thread of its own: no step waits for one."""

import logging
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from backends.engine.grammar import Constraint, GrammarError
from backends.engine.sequence import Sequence
from backends.wire import Grammar

Compile = Callable[[Grammar], Constraint]

_log = logging.getLogger(__name__)


class Compiling:
    """In the order of arrival. `compile`: see `grammar.GrammarCompiler`."""

    def __init__(self, compile: Compile) -> None:
        self._compile = compile
        self._thread = ThreadPoolExecutor(1, "grammar")
        self._orders: dict[int, tuple[Sequence, Future[Constraint]]] = {}  # by the sequence's number

    def __len__(self) -> int:
        return len(self._orders)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.number in self._orders

    def order(self, sequence: Sequence, grammar: Grammar) -> None:
        """Have the grammar compiled for this sequence."""
        future = self._thread.submit(self._compile, grammar)
        self._orders[sequence.number] = sequence, future

    def cancel(self, sequence: Sequence) -> None:
        """Forget an order. A compilation under way goes on, for nobody."""
        _, future = self._orders.pop(sequence.number)
        future.cancel()

    def take(self) -> list[tuple[Sequence, Constraint | GrammarError]]:
        """What has come of the orders that are done."""
        done = [(sequence, future) for sequence, future in self._orders.values() if future.done()]
        for sequence, _ in done:
            del self._orders[sequence.number]
        return [(sequence, _result(future)) for sequence, future in done]

    def wait(self, seconds: float) -> None:
        """Until an order is done, or so long."""
        wait([future for _, future in self._orders.values()], seconds, FIRST_COMPLETED)


def _result(future: Future[Constraint]) -> Constraint | GrammarError:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, GrammarError):
        return error
    _log.error("a grammar could not be compiled", exc_info=error)
    return GrammarError("it could not be compiled")
