"""All blocks of a model in one call.

A step of few tokens is as fast as weights come from memory, and while Python goes from one call to the next none do.
The blocks of most models have arrays of the same shapes, so that loops need those of one block, and where the others'
lie.

Of a long prompt each thread has panels of tokens, and takes them from one attention to the next by itself: what it
writes stays in the cache that is its own, and threads wait for one another at attentions alone.

The same loops run as in calls of their own, so nothing of the result is different.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from backends.kernels import between, loops
from backends.kernels.attention import attend
from backends.kernels.between import Arrays
from backends.kernels.layout import ENDLESS, LayerRule
from backends.kernels.sides import Side
from backends.kernels.team import deal, jit, threads, without_lock

Array = NDArray[Any]

_PANEL = 64  # tokens of a panel at least; weights are read once for each
_LINEARS = ("qkv", "output", "gate_up", "down")


@dataclass(frozen=True, slots=True)
class Stack:
    """The weights of blocks that are alike.

    linears    what the four linear layers of the first block have as their `arrays`
    addresses  int64 [blocks, 4, 4]: where the arrays of each block lie
    norms      float32 [blocks, 2, width]
    blocks     whose memory that is
    """

    linears: tuple[Arrays, ...]
    addresses: Array
    norms: Array
    blocks: Sequence[Any]

    @classmethod
    def of(cls, blocks: Sequence[Any]) -> "Stack | None":
        """`blocks` as `backends.models.decoder` has them; None where they are not alike, or do more than `run`."""
        linears = [each for block in blocks if (each := _linears(block)) is not None]
        if len(linears) < len(blocks) or len({tuple(map(_kind, each)) for each in linears}) != 1:
            return None
        addresses = [[[array.ctypes.data for array in _arrays(each)] for each in block] for block in linears]
        norms = [[block.attention_norm.numpy(), block.mlp_norm.numpy()] for block in blocks]
        return cls(linears[0], np.array(addresses, np.int64), np.array(norms, np.float32), blocks)


def rules_of(rules: Sequence[LayerRule]) -> Array:
    """For `run`: int64 [blocks, 2], what `loops.rotate_store` has as `angles` and `attention.attend` as `window`."""
    return np.array(
        [
            (
                loops.UNROTATED if rule.angles is None else rule.angles,
                ENDLESS if rule.window is None else rule.window,
            )
            for rule in rules
        ],
        np.int64,
    )


def _linears(block: Any) -> tuple[Arrays, ...] | None:
    """What `Stack` has of each block; None for one that does more than `run`, or whose products are torch's."""
    found = [getattr(getattr(block, name), "arrays", None) for name in _LINEARS]
    arrays = [each for each in found if each is not None]
    plain = block.head_norms is None and block.post_norms is None
    return tuple(arrays) if plain and len(arrays) == len(found) else None


def _arrays(linear: Arrays) -> list[Array]:
    return [each for each in linear if isinstance(each, np.ndarray)]


def _kind(linear: Arrays) -> tuple[Any, ...]:
    """All that loops know of it when they are compiled and called, its memory apart."""
    return tuple((each.dtype, each.shape) for each in linear)


@without_lock
def run(
    residual: Array,
    update: Array,
    eps: Any,
    norms: Array,
    linears: tuple[Arrays, ...],
    addresses: Array,
    rules: Array,
    size: int,
    scale: Any,
    cap: Any,
    gelu: bool,
    cos: Array,
    sin: Array,
    keys: Side,
    values: Side,
    positions: Array,
    turns: Array,
    rows: Array,
    tables: Array,
    pieces: Array,
    groups: Array,
) -> None:
    """All blocks: `update` becomes the next update, which is not added yet. As `between.project`,
    `loops.rotate_store`, `attention.attend` and so on have them."""
    tokens, kv_heads = len(update), keys[0].shape[3]
    qkv = np.empty((tokens, len(linears[0][-1])), update.dtype)
    mixed = np.empty((tokens, qkv.shape[1] - 2 * kv_heads * size), update.dtype)
    width = len(linears[2][-1]) // 2
    panels = tokens // _PANEL
    if panels < 2 * threads():
        panels = 1
    for block in range(len(norms)):
        norm, rule, at = norms[block], rules[block], addresses[block]
        before = (
            panels, block, size, residual, update, norm[0], eps, placed(linears[0], at[0]), qkv, rule[0], cos, sin,
            keys, values, positions, turns, rows, tables,
        )  # fmt: skip
        after = (
            panels, mixed, placed(linears[1], at[1]), residual, update, norm[1], eps, placed(linears[2], at[2]),
            width, gelu, placed(linears[3], at[3]),
        )  # fmt: skip
        if panels > 1:
            deal(_before, panels, before)
        else:
            _before(0, *before)
        attend(block, size, rule[1], scale, cap, qkv, keys, values, tables, pieces, groups, mixed)
        if panels > 1:
            deal(_after, panels, after)
        else:
            _after(0, *after)


@jit
def _before(
    panel: int,
    panels: int,
    block: int,
    size: int,
    residual: Array,
    update: Array,
    norm: Array,
    eps: Any,
    linear: Arrays,
    qkv: Array,
    angles: int,
    cos: Array,
    sin: Array,
    keys: Side,
    values: Side,
    positions: Array,
    turns: Array,
    rows: Array,
    tables: Array,
) -> None:
    """What a block does to one panel of tokens until its attention."""
    first, last = _edges(panel, panels, len(update))
    own = qkv[first:last]
    between.project(residual[first:last], update[first:last], norm, eps, linear, own)
    loops.rotate_store(
        block, size, angles, own, cos, sin, keys, values,
        positions[first:last], turns[first:last], rows[first:last], tables,
    )  # fmt: skip


@jit
def _after(
    panel: int,
    panels: int,
    mixed: Array,
    output: Arrays,
    residual: Array,
    update: Array,
    norm: Array,
    eps: Any,
    gate_up: Arrays,
    width: int,
    gelu: bool,
    down: Arrays,
) -> None:
    """What it does from there."""
    first, last = _edges(panel, panels, len(update))
    own = update[first:last]
    between.product(mixed[first:last], output, own)
    between.feed_forward(residual[first:last], own, norm, eps, gate_up, width, gelu, down, own)


@jit
def _edges(panel: int, panels: int, tokens: int) -> Any:
    """Panels are as even as can be."""
    return panel * tokens // panels, (panel + 1) * tokens // panels


def placed(linear: Arrays, addresses: Array) -> Arrays:
    """The same with its arrays at other addresses."""
    raise NotImplementedError("for compiled loops alone")


@overload(placed)  # type: ignore[untyped-decorator]
def _placed(linear: Any, addresses: Any) -> Any:
    def four_bits(linear: Any, addresses: Any) -> Any:
        weight, scales, minima, bias = linear
        return (
            _moved(weight, addresses[0]),
            _moved(scales, addresses[1]),
            _moved(minima, addresses[2]),
            _moved(bias, addresses[3]),
        )

    def eight_bits(linear: Any, addresses: Any) -> Any:
        zero, weight, offsets, channel, bias = linear
        return (
            zero,
            _moved(weight, addresses[0]),
            _moved(offsets, addresses[1]),
            _moved(channel, addresses[2]),
            _moved(bias, addresses[3]),
        )

    return eight_bits if isinstance(linear[0], types.Integer) else four_bits


@intrinsic  # type: ignore[untyped-decorator]
def _moved(_: Any, array: Any, address: Any) -> Any:
    """An array of the same shape at an address, whose memory somebody else keeps."""

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        moved = context.make_array(signature.return_type)(context, builder, values[0])
        moved.data = builder.inttoptr(values[1], moved.data.type)
        moved.meminfo = ir.Constant(moved.meminfo.type, None)
        return moved._getvalue()

    return array(array, types.int64), lower
