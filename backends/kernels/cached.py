"""Products of a few queries with keys, and of their weights with values, read from the paged cache into registers.

Nothing that is read is written anywhere before it is multiplied. Each score is one chain of fused additions over the
dimensions from first to last, each sum of values one over the keys from first to last, whatever the registers are.

Both read a cache, or a tile, of float32, bfloat16 as int16, or int8 with scales, as vectors of `size` numbers, a
multiple of STEP, one after another; `places` int64 are the numbers of those that are meant.
"""

from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from backends.kernels.registers import (
    F32,
    I32,
    I64,
    arguments,
    joined,
    load,
    multiply_add,
    prefetch,
    repeat,
    shuffled,
    spread,
    store,
    widened,
)  # fmt: skip
from backends.kernels.vectors import STEP

FEW = 8  # queries at most
_LINE = 64  # bytes that come from memory at a time
_WORD = 32  # bits
_QUAD = 4  # words that lie in as many bits as shuffles are cheapest in

# Of two registers, words within each quad; from _QUAD on those of the second one.
_LOW, _HIGH, _FIRST, _SECOND = [0, 4, 1, 5], [2, 6, 3, 7], [0, 1, 4, 5], [2, 3, 6, 7]
_EVEN, _ODD = [0, 2, 4, 6], [1, 3, 5, 7]


def scoring(lanes: int, sums: int) -> Any:
    """`score` with registers of so many lanes, a key each: of the sums of all queries at most `sums` at a time, unless
    there are more queries."""

    @intrinsic  # type: ignore[untyped-decorator]
    def score(_: Any, queries: Any, keys: Any, scales: Any, places: Any, many: Any, scores: Any) -> Any:
        """scores[m, j] = query m · key `places[j]` for j < `many` ≥ 1; what is behind in the row means nothing.

        queries  float32 [up to FEW, size]
        places   [width], those behind `many` being of any vectors that are there
        scores   float32 [at least queries, width], the width a multiple of 4 · lanes
        """

        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            queries, keys, scales, places, many, scores = arguments(context, builder, signature, values)
            count, size = (builder.extract_value(queries.shape, axis) for axis in (0, 1))
            width = builder.extract_value(scores.shape, 1)

            def case(rows: int) -> None:
                parts = _most(rows, sums, (1, 2, 4))
                starts, targets = _rows(builder, queries, rows, size), _rows(builder, scores, rows, width)
                with cgutils.for_range_slice(builder, I64(0), many, I64(parts * lanes), I64) as (first, _):
                    ends = [builder.add(first, I64(part * lanes)) for part in range(parts)]
                    columns = [_Columns(builder, lanes, keys, scales, places, end, size) for end in ends]
                    at = [builder.gep(target, [end]) for target in targets for end in ends]
                    for found, place in zip(_scores(builder, starts, columns, size), at, strict=True):
                        store(builder, found, place)

            _by_count(builder, count, case)
            return context.get_dummy_value()

        return types.void(queries, keys, scales, places, many, scores), lower

    return score


def _scores(builder: Any, queries: list[Any], columns: list["_Columns"], size: Any) -> list[Any]:
    """Of each query with each column."""
    vector = columns[0].vector

    def step(place: Any, sums: list[Any]) -> list[Any]:
        begin = builder.mul(place, I64(STEP))
        for i, numbers in enumerate(zip(*(each.numbers(begin) for each in columns), strict=True)):
            at = builder.add(begin, I64(i))
            factors = [spread(builder, builder.load(builder.gep(query, [at])), vector) for query in queries]
            sums = _added(builder, sums, factors, numbers)
        return sums

    nothing = [vector([0.0] * vector.count)] * (len(queries) * len(columns))
    return repeat(builder, builder.udiv(size, I64(STEP)), nothing, step)


class _Columns:
    """Some keys turned on their side: a lane has one of them."""

    def __init__(
        self, builder: Any, lanes: int, keys: Any, scales: Any, places: Any, first: Any, size: Any
    ) -> None:
        self.builder = builder
        self.vector, self._words = ir.VectorType(F32, lanes), ir.VectorType(I32, lanes)
        at = [builder.load(builder.gep(places.data, [builder.add(first, I64(j))])) for j in range(lanes)]
        self._starts = [builder.gep(keys.data, [builder.mul(each, size)]) for each in at]
        self._bits = 8 * _bytes(keys)
        self._scales = None
        if self._bits == 8:
            self._scales = self.vector(ir.Undefined)
            for j, each in enumerate(at):
                scale = builder.load(builder.gep(scales.data, [each]))
                self._scales = builder.insert_element(self._scales, scale, I32(j))

    def numbers(self, begin: Any) -> Iterator[Any]:
        """The dimensions from `begin` on, STEP of them, one after another."""
        words = STEP * self._bits // _WORD
        for first in range(0, words, _QUAD):
            at = self.builder.add(begin, I64(first))
            for word in self._turned(at, min(words, _QUAD)):
                yield from self._parts(word)

    def _turned(self, begin: Any, count: int) -> list[Any]:
        """`count` words of each key, two or four, from element `begin` on."""
        builder, type = self.builder, ir.VectorType(I32, count)
        keys = [load(builder, builder.gep(start, [begin]), type, align=1) for start in self._starts]
        if count == 2:
            low, high = (
                joined(builder, [key for j in range(first, len(keys), _QUAD) for key in keys[j : j + 2]])
                for first in (0, 2)
            )
            return [self._shuffled(low, high, mask) for mask in (_EVEN, _ODD)]
        a, b, c, d = (joined(builder, keys[first::_QUAD]) for first in range(_QUAD))
        halves = [(self._shuffled(a, b, mask), self._shuffled(c, d, mask)) for mask in (_LOW, _HIGH)]
        return [self._shuffled(*half, mask) for half in halves for mask in (_FIRST, _SECOND)]

    def _shuffled(self, a: Any, b: Any, words: list[int]) -> Any:
        lanes = self._words.count
        mask = [
            quad + word % _QUAD + word // _QUAD * lanes for quad in range(0, lanes, _QUAD) for word in words
        ]
        return shuffled(self.builder, a, b, mask)

    def _parts(self, word: Any) -> Iterator[Any]:
        """The numbers that a word of each key holds, in float32."""
        builder, bits = self.builder, self._bits
        if bits == _WORD:
            yield builder.bitcast(word, self.vector)
            return
        for end in range(bits, _WORD + 1, bits):
            high = builder.shl(word, self._all(_WORD - end))
            if self._scales is None:
                yield builder.bitcast(builder.and_(high, self._all(-1 << _WORD - bits)), self.vector)
            else:
                code = builder.ashr(high, self._all(_WORD - bits))
                yield builder.fmul(builder.sitofp(code, self.vector), self._scales)

    def _all(self, number: int) -> Any:
        return self._words([number] * self._words.count)


def mixing(lanes: int, sums: int) -> Any:
    """`mix` with registers of so many lanes, a dimension each: at most `sums` of them have sums, unless there are more
    queries."""

    @intrinsic  # type: ignore[untyped-decorator]
    def mix(
        _: Any, weights: Any, values: Any, scales: Any, places: Any, many: Any, kept: Any, means: Any,
        next_keys: Any, next_values: Any, next_places: Any,
    ) -> Any:  # fmt: skip
        """means[m] = kept[m] · means[m], and to that the weights[m, j] · value `places[j]` for j < `many` ≥ 1.

        weights       float32 [at least queries, width]
        kept          float32 [at least queries]
        means         float32 [up to FEW, size]
        next_places   [width], of `next_keys` and `next_values`: what is read after this is brought near meanwhile,
                      unless these are records
        """
        ahead = next_keys.dtype != types.uint8

        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            (weights, values, scales, places, many, kept, means, *following, coming) = arguments(
                context, builder, signature, values
            )
            count, size = (builder.extract_value(means.shape, axis) for axis in (0, 1))
            width = builder.extract_value(weights.shape, 1)
            source = _Values(
                builder, size, width, values, scales, places, many, following if ahead else [], coming
            )

            def case(rows: int) -> None:
                starts, targets = _rows(builder, weights, rows, width), _rows(builder, means, rows, size)
                factors = [builder.load(builder.gep(kept.data, [I64(m)])) for m in range(rows)]
                begin = I64(0)
                for parts, each in ((_most(rows, sums, (1, 2, 4)), lanes), (1, lanes), (1, STEP)):
                    step, vector = I64(parts * each), ir.VectorType(F32, each)
                    end = builder.sub(size, builder.urem(size, step))
                    with cgutils.for_range_slice(builder, begin, end, step, I64) as (at, _):
                        ends = [builder.add(at, I64(part * each)) for part in range(parts)]
                        _mean(builder, source, starts, targets, factors, vector, ends)
                    begin = end

            _by_count(builder, count, case)
            return context.get_dummy_value()

        arrays = weights, values, scales, places, many, kept, means, next_keys, next_values, next_places
        return types.void(*arrays), lower

    return mix


def _mean(
    builder: Any,
    source: "_Values",
    weights: list[Any],
    means: list[Any],
    kept: list[Any],
    vector: Any,
    ends: list[Any],
) -> None:
    """The dimensions from each of `ends` on that a register has, of each query."""
    at = [builder.gep(mean, [end]) for mean in means for end in ends]
    begun = [
        builder.fmul(load(builder, place, vector), spread(builder, kept[number // len(ends)], vector))
        for number, place in enumerate(at)
    ]

    def step(j: Any, sums: list[Any]) -> list[Any]:
        source.expect(j, ends, vector)
        factors = [spread(builder, builder.load(builder.gep(row, [j])), vector) for row in weights]
        return _added(builder, sums, factors, source.read(j, ends, vector))

    for found, place in zip(repeat(builder, source.many, begun, step), at, strict=True):
        store(builder, found, place)
    with cgutils.for_range_slice(builder, source.many, source.width, I64(1), I64) as (j, _):
        source.expect(j, ends, vector)


class _Values:
    """The values of a tile, and what comes after it."""

    def __init__(
        self, builder: Any, size: Any, width: Any, values: Any, scales: Any, places: Any, many: Any,
        next_sides: list[Any], next_places: Any,
    ) -> None:  # fmt: skip
        self.builder, self.many, self.width = builder, many, width
        self._size, self._values, self._scales, self._places = size, values, scales, places
        self._next_sides, self._next_places = next_sides, next_places

    def read(self, j: Any, ends: list[Any], vector: Any) -> list[Any]:
        """Of the `j`-th one a register from each of `ends` on."""
        builder, place = self.builder, self._place(self._places, j)
        start = builder.mul(place, self._size)
        at = [builder.gep(self._values.data, [builder.add(start, end)]) for end in ends]
        numbers = [widened(builder, each, vector) for each in at]
        if _bytes(self._values) > 1:
            return numbers
        scale = spread(builder, builder.load(builder.gep(self._scales.data, [place])), vector)
        return [builder.fmul(each, scale) for each in numbers]

    def expect(self, j: Any, ends: list[Any], vector: Any) -> None:
        """Bring near as much of the `j`-th key and value that come next."""
        builder = self.builder
        start = builder.add(builder.mul(self._place(self._next_places, j), self._size), ends[0])
        for side in self._next_sides:
            for element in range(0, vector.count * len(ends), _LINE // _bytes(side)):
                prefetch(builder, builder.gep(side.data, [builder.add(start, I64(element))]))

    def _place(self, places: Any, j: Any) -> Any:
        return self.builder.load(self.builder.gep(places.data, [j]))


def _added(builder: Any, sums: list[Any], factors: list[Any], numbers: Any) -> list[Any]:
    """The product of each factor with each number added to its sum."""
    pairs = [(factor, number) for factor in factors for number in numbers]
    return [multiply_add(builder, *pair, total) for pair, total in zip(pairs, sums, strict=True)]


def _rows(builder: Any, array: Any, count: int, width: Any) -> list[Any]:
    """Where the first `count` rows begin."""
    return [builder.gep(array.data, [builder.mul(width, I64(m))]) for m in range(count)]


def _bytes(array: Any) -> int:
    """Of an element."""
    return int(getattr(array.data.type.pointee, "width", _WORD)) // 8


def _most(rows: int, sums: int, parts: tuple[int, ...]) -> int:
    """The largest of `parts` with no more than `sums` for so many rows, or the first."""
    return max(part for part in parts if part == parts[0] or part * rows <= sums)


def _by_count(builder: Any, count: Any, case: Callable[[int], None]) -> None:
    """A loop of its own for each number of queries."""
    done = builder.append_basic_block("done")
    cases = builder.switch(count, done)
    for rows in range(1, FEW + 1):
        block = builder.append_basic_block("rows")
        cases.add_case(I64(rows), block)
        builder.position_at_end(block)
        case(rows)
        builder.branch(done)
    builder.position_at_end(done)


# What 32 registers of 512 bits hold, or 16 of 256.
_WIDE = bool(binding.get_host_cpu_features().get("avx512f"))
score, mix = (scoring(16, 4), mixing(16, 24)) if _WIDE else (scoring(8, 8), mixing(8, 8))
