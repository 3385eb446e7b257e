"""Attention over the paged cache: decoding, prompts, chunks behind a cached prefix, windows, and caches of 8 bits."""

from collections.abc import Iterator, Sequence

import torch

from backends.kernels.cuda import Cuda
from backends.kernels.kv_formats import quantize
from backends.kernels.layout import LONG, KVCache, LayerRule, Layout, Scheme, Span
from backends.kernels.reference import Kernels
from benchmarks.gpu_kernels.case import Case, Setting

BLOCK = 16
HEADS, KV_HEADS, HEAD = 32, 8, 128
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
Lengths = Sequence[tuple[int, int]]  # tokens before, tokens


def cases(setting: Setting) -> Iterator[Case]:
    context = setting.size(4096, 40)
    decode: Lengths = [(context - 1, 1)] * setting.size(16, 2)
    for cache_dtype in (setting.dtype, torch.int8, torch.float8_e4m3fn):
        name = "" if cache_dtype == setting.dtype else f", cache of {str(cache_dtype).removeprefix('torch.')}"
        yield _case(setting, f"{len(decode)} sequences at {context}{name}", decode, cache_dtype)
    long = setting.size(131072, 100)
    yield _case(setting, f"one sequence at {long}", [(long - 1, 1)], setting.dtype)
    chunk = setting.size(2048, 20)
    yield _case(setting, f"a prompt of {chunk}", [(0, chunk)], setting.dtype)
    if setting.quick:
        return
    yield _case(setting, f"a chunk of {chunk // 2} behind {context}", [(context, chunk // 2)], setting.dtype)
    mixed: Lengths = [*decode, (context, 5), (0, chunk)]
    yield _case(setting, "decoding, a draft and a prompt together", mixed, setting.dtype)
    yield _case(setting, f"a window of {context // 2}", decode, setting.dtype, window=context // 2)
    yield _case(setting, "scores with a soft cap", decode, setting.dtype, soft_cap=30.0)


def _case(
    setting: Setting,
    name: str,
    lengths: Lengths,
    cache_dtype: torch.dtype,
    window: int | None = None,
    soft_cap: float | None = None,
) -> Case:
    heads, kv_heads = (4, 2) if setting.tiny else (HEADS, KV_HEADS)
    size = setting.size(HEAD, 32)
    spans, blocks = _spans(lengths)
    cache = KVCache(1, blocks, BLOCK, kv_heads, size, dtype=cache_dtype, device=setting.device)
    _fill(cache, setting)
    layout = Layout(spans, cache)
    table = torch.zeros(1, size // 2, device=setting.device)
    scheme = Scheme(soft_cap=soft_cap, rules=[LayerRule(window=window)])
    plain, ours = (kind(cache, table, table, heads, scheme) for kind in (Kernels, Cuda))
    q = setting.normal(sum(count for _, count in lengths), heads, size)
    seen = sum(_seen(span, window) for span in spans)
    read = sum(min(span.stop, window or span.stop) for span in spans)
    return Case(
        name=name,
        kernels=("attend", "merge") if any(count < LONG for _, count in lengths) else ("attend",),
        check=lambda: ((ours.attend(0, q, layout),), (plain.attend(0, q, layout),)),
        run=lambda: ours.attend(0, q, layout),
        bytes=read * kv_heads * size * 2 * cache_dtype.itemsize + 2 * q.nbytes,
        tolerance=TOLERANCE[setting.dtype],
        operations=4.0 * seen * heads * size,
    )


def _spans(lengths: Lengths) -> tuple[list[Span], int]:
    """In blocks that are scattered over a pool of this many."""
    needed = [-(-(start + count) // BLOCK) for start, count in lengths]
    order = torch.randperm(sum(needed)).tolist()
    spans, first = [], 0
    for (start, count), blocks in zip(lengths, needed, strict=True):
        spans.append(Span(start, count, order[first : first + blocks]))
        first += blocks
    return spans, sum(needed)


def _fill(cache: KVCache, setting: Setting) -> None:
    for side, scales in ((cache.keys, cache.key_scales), (cache.values, cache.value_scales)):
        numbers = setting.normal(*side.shape)
        if scales is None:
            side.copy_(numbers)
        else:
            codes, each = quantize(numbers, side.dtype)
            side.copy_(codes)
            scales.copy_(each)


def _seen(span: Span, window: int | None) -> int:
    """Pairs of a token and one that it sees."""
    return sum(min(position + 1, window or position + 1) for position in range(span.start, span.stop))
