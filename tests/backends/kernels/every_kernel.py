"""Prints a digest of what each kernel for CPUs that decides answers makes of the same numbers, by its name.

Called with the names of GROUPS. `compiled`: how many of the kernels were not found on disk.
"""

import hashlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from backends.kernels import attention as attending
from backends.kernels import between, draws, int4, int8, int8_avx2, loops, signals, stack
from backends.kernels.cpu import Cpu
from backends.kernels.layout import KVCache, Layout, Scheme, Span
from backends.layers.int8 import Int8Linear

Array = NDArray[Any]

ROWS, WIDTH = 5, 32 * 18 + 3  # lanes, and what is left of them
HEADS, KV_HEADS, SIZE = 6, 2, 32
NOISE = np.random.default_rng(0)
ENTRIES: list[Any] = [
    loops.add_norm, loops.silu_mul, loops.gelu_mul, loops.rotate_store, draws.draw, signals.signals, signals.argmax,
    attending.attend, int8.quantize, int8.quantize_weights, int8.finish, int8_avx2.multiply, int4.quantize,
    int4.multiply, between.product, between.project, between.feed_forward, stack.run,
]  # fmt: skip


def floats(*shape: int) -> Array:
    return NOISE.standard_normal(shape).astype(np.float32)


def tensor(*shape: int) -> torch.Tensor:
    return torch.from_numpy(floats(*shape))


def kernels(cache: torch.dtype, scheme: Scheme) -> tuple[Cpu, KVCache]:
    kept = KVCache(1, 64, 16, KV_HEADS, SIZE, dtype=cache)
    return Cpu(kept, tensor(700, SIZE // 2), tensor(700, SIZE // 2), HEADS, scheme), kept


def attended(cache: torch.dtype, scheme: Scheme) -> Iterator[tuple[str, torch.Tensor]]:
    """A prompt of more than one part, and then three tokens and one beside each other."""
    ours, kept = kernels(cache, scheme)
    blocks = list(range(40))
    for name, spans in (
        ("chunk", [Span(0, 600, blocks)]),
        ("singles", [Span(600, 1, blocks), Span(0, 3, [50])]),
    ):
        tokens = sum(span.count for span in spans)
        qkv = tensor(tokens, (HEADS + 2 * KV_HEADS) * SIZE)
        yield f"attention {name} {cache}", ours.attention(0, qkv, Layout(spans, kept))
        yield f"rotation {name} {cache}", qkv


def rows() -> Iterator[tuple[str, torch.Tensor]]:
    ours, _ = kernels(torch.float32, Scheme())
    residual, gate_up = tensor(ROWS, WIDTH), tensor(ROWS, 2 * WIDTH)
    yield "norm", ours.add_norm(residual, tensor(ROWS, WIDTH), tensor(WIDTH), 1e-6)
    yield "residual", residual
    yield "silu", ours.silu_mul(gate_up)
    yield "gelu", ours.gelu_mul(gate_up)
    keys = torch.from_numpy(NOISE.integers(0, 2**62, ROWS))
    scores = tensor(ROWS, 3000)
    yield "draw", ours.draw(scores, keys)
    yield "argmax", ours.argmax(scores)
    yield "signals", ours.signals(scores * 4, torch.arange(ROWS), torch.zeros(ROWS, dtype=torch.int64))


def eight_bits() -> Iterator[tuple[str, Array]]:
    columns, channels = 128, 96
    rows, scales = np.empty((ROWS, columns), np.int16), np.empty(ROWS, np.float32)
    int8.quantize(floats(ROWS, columns), 0, rows, scales)
    yield "int8 rows", rows
    yield "int8 scales", scales
    turned, small = floats(ROWS, columns), np.empty((ROWS, columns), np.int8)
    int8.quantize_weights(turned, small, scales)
    yield "int8 rotation", turned
    yield "int8 weights", small
    offsets, channel, bias = np.zeros(channels, np.int32), floats(channels), floats(channels)
    out = np.empty((ROWS, channels), np.float32)
    sums = NOISE.integers(-(2**20), 2**20, (ROWS, channels)).astype(np.int32)
    int8.finish(sums, scales, offsets, channel, bias, out)
    yield "int8 finish", out.copy()
    weight = NOISE.integers(-127, 128, (2 * int8.WIDE // 16, columns // 2, 16, 2)).astype(np.int8)
    int8_avx2.multiply(rows, scales, weight, offsets, channel, bias, out)
    yield "int8 product", out


def four_bits() -> Iterator[tuple[str, Array]]:
    groups, channels, blocks = 4, 40, 8  # whole items of work
    rows = np.empty((ROWS, groups * int4.GROUP), np.int8)
    scales, sums = np.empty((2, ROWS, groups), np.float32)
    int4.quantize(floats(ROWS, groups * int4.GROUP), rows, scales, sums)
    yield "int4 rows", rows
    yield "int4 scales", scales
    weight = NOISE.integers(0, 256, (blocks, groups, 4, 8, 4)).astype(np.uint8)
    tables = floats(blocks, groups, 8), floats(blocks, groups, 8)
    out = np.empty((ROWS, channels), np.float32)
    int4.multiply(rows, scales, sums, weight, *tables, floats(channels), out)
    yield "int4 product", out


def together() -> Iterator[tuple[str, Any]]:
    """A block's MLP of eight bits, whose second product is of four."""
    columns, channels = 128, 96
    zero = np.int16(0)
    packed = NOISE.integers(-127, 128, (2 * int8.WIDE // 16, columns // 2, 16, 2)).astype(np.int8)
    offsets, bias = np.zeros(channels, np.int32), floats(channels)
    eight = zero, packed, offsets, floats(channels), bias
    residual, update, weight = floats(ROWS, columns), floats(ROWS, columns), floats(columns)
    out = np.empty((ROWS, channels), np.float32)
    between.product(update, eight, out)
    yield "product", out.copy()
    between.project(residual, update, weight, np.float32(1e-5), eight, out)
    yield "projection", out
    four = NOISE.integers(0, 256, (8, 1, 4, 8, 4)).astype(np.uint8)
    tables = floats(8, 1, 8), floats(8, 1, 8)
    down = four, *tables, floats(40)
    result = np.empty((ROWS, 40), np.float32)
    between.feed_forward(residual, update, weight, np.float32(1e-5), eight, 32, False, down, result)
    yield "feed forward", result


def stacked() -> Iterator[tuple[str, torch.Tensor]]:
    """A block of eight bits in one call."""
    ours, kept = kernels(torch.float32, Scheme())
    wide = HEADS * SIZE
    shapes = {"qkv": (wide + 2 * KV_HEADS * SIZE, wide), "output": (wide, wide)}
    shapes |= {"gate_up": (2 * wide, wide), "down": (wide, wide)}
    linears = {name: Int8Linear(tensor(*shape)) for name, shape in shapes.items()}
    norms = {"attention_norm": tensor(wide), "mlp_norm": tensor(wide), "head_norms": None, "post_norms": None}
    residual, update = tensor(ROWS, wide), tensor(ROWS, wide)
    layout = Layout([Span(0, ROWS, [3])], kept)
    assert ours.blocks([SimpleNamespace(**linears, **norms)], residual, update, layout, 1e-5, "silu")
    yield "stack", update
    yield "stack residual", residual


def attention() -> Iterator[tuple[str, Any]]:
    yield from attended(torch.float32, Scheme(soft_cap=20.0))
    yield from attended(torch.int8, Scheme())
    if int8.cpu_has("avx2"):
        yield from stacked()


def products() -> Iterator[tuple[str, Any]]:
    if int8.cpu_has("avx2"):
        yield from eight_bits()
        yield from four_bits()
        yield from together()


GROUPS = {"rows": rows, "products": products, "attention": attention}

if __name__ == "__main__":
    digests = {
        name: hashlib.sha256(np.asarray(x).tobytes()).hexdigest()
        for group in sys.argv[1:]
        for name, x in GROUPS[group]()
    }
    compiled = sum(sum(kernel.stats.cache_misses.values()) for kernel in ENTRIES)
    print(msgspec.json.encode({"compiled": compiled, "digests": digests}).decode())
