"""What the first rank tells the others: which model to load, and then what each step runs.

The first rank alone schedules and samples, since it alone gets the logits. The others need neither samplings nor
grammars, and no word of what was sampled: it comes back to them as a token of the next step. A step is a few dozen
bytes for each row; of a table of blocks it holds what the last step's has not.

Transport: msgpack on the standard input of each process, every order behind its length. No order is ever answered.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import msgspec

from backends.kernels.layout import Span
from backends.wire import EngineConfig

_LENGTH = struct.Struct("<I")


class Load(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Be a rank of the engine that `config` describes, instead of another one."""

    config: EngineConfig
    vocab_size: int | None  # see `runner.load_model`


class Table(msgspec.Struct, frozen=True, array_like=True):
    """The blocks of one row: all of those of row `since` of the last step, if it is one, and then `more`."""

    since: int | None
    more: list[int]


class RowOrder(msgspec.Struct, frozen=True, array_like=True):
    """As `layout.Span`."""

    start: int
    count: int
    shift: int
    table: Table


class Step(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Run the tokens `ids` of all rows on `threads` threads. `reads`: of which of them there are logits."""

    rows: list[RowOrder]
    ids: list[int]
    reads: list[int]
    threads: int


Order = Load | Step
_DECODER = msgspec.msgpack.Decoder(Order)


def write(order: Order) -> bytes:
    """With its length."""
    body = msgspec.msgpack.encode(order)
    return _LENGTH.pack(len(body)) + body


def read(stream: BinaryIO) -> Iterator[Order]:
    """All orders, until whoever gives them is gone."""
    while len(length := stream.read(_LENGTH.size)) == _LENGTH.size:
        body = stream.read(*_LENGTH.unpack(length))
        yield _DECODER.decode(body)


class Tables:
    """The tables of blocks as both sides remember them from step to step."""

    def __init__(self) -> None:
        self._last: list[list[int]] = []

    def told(self, spans: Sequence[Span]) -> list[Table]:
        """What to say of the next step's tables."""
        ends = {(len(table), table[-1]): row for row, table in enumerate(self._last)}
        lengths = sorted({length for length, _ in ends}, reverse=True)
        tables = [list(span.blocks) for span in spans]
        told = [self._table(table, ends, lengths) for table in tables]
        self._last = tables
        return told

    def _table(self, table: list[int], ends: dict[tuple[int, int], int], lengths: list[int]) -> Table:
        for length in lengths:
            row = ends.get((length, table[length - 1])) if length <= len(table) else None
            if row is not None and self._last[row] == table[:length]:
                return Table(row, table[length:])
        return Table(None, table)

    def heard(self, told: Sequence[Table]) -> list[list[int]]:
        """The next step's tables, of which `told` was said."""
        self._last = [
            each.more if each.since is None else self._last[each.since] + each.more for each in told
        ]
        return self._last
