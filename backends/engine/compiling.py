"""Sequences that stand aside until their grammar is compiled, in a thread of its own: no step waits for one.

Tenants take turns, one grammar each: a bad one may take seconds until it is given up.
"""

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Lock

from backends.engine.grammar import Constraint, GrammarError
from backends.engine.sequence import Sequence
from backends.wire import Grammar

Compile = Callable[[Grammar], Constraint]

_log = logging.getLogger(__name__)


class Compiling:
    """For each tenant in the order of arrival. `compile`: see `grammar.GrammarCompiler`."""

    def __init__(self, compile: Compile) -> None:
        self._compile = compile
        self._thread = ThreadPoolExecutor(1, "grammar")
        self._orders: dict[int, tuple[Sequence, Future[Constraint]]] = {}  # by the sequence's number
        self._lines: dict[str, deque[tuple[Grammar, Future[Constraint]]]] = {}  # by tenant, in turn
        self._lock = Lock()  # of the lines

    def __len__(self) -> int:
        return len(self._orders)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.number in self._orders

    @property
    def sequences(self) -> list[Sequence]:
        """Those that stand aside."""
        return [sequence for sequence, _ in self._orders.values()]

    def order(self, sequence: Sequence, grammar: Grammar) -> None:
        """Have the grammar compiled for this sequence."""
        future: Future[Constraint] = Future()
        self._orders[sequence.number] = sequence, future
        with self._lock:
            self._lines.setdefault(sequence.tenant, deque()).append((grammar, future))
        self._thread.submit(self._compile_next)

    def _compile_next(self) -> None:
        grammar, future = self._take_turn()
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self._compile(grammar))
        except Exception as error:
            future.set_exception(error)

    def _take_turn(self) -> tuple[Grammar, Future[Constraint]]:
        """The next order of the tenant whose turn it is, who then goes to the end of the line."""
        with self._lock:
            tenant = next(iter(self._lines))
            line = self._lines.pop(tenant)
            order = line.popleft()
            if line:
                self._lines[tenant] = line
            return order

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
