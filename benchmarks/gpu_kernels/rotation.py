"""Rotation and the way into the cache, for caches of each type."""

from collections.abc import Iterator

import torch

from backends.kernels.cuda import Cuda
from backends.kernels.kv_formats import dequantize
from backends.kernels.layout import KVCache, Layout, Span
from backends.kernels.reference import Kernels
from benchmarks.gpu_kernels.case import Case, Setting, Tensors

BLOCK = 16
# A number that was rotated in another order of sums may get the neighbour of its code, of 16 steps between powers of 2.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2, torch.int8: 2e-2}
FLOAT8_TOLERANCE = 7e-2


def cases(setting: Setting) -> Iterator[Case]:
    for cache_dtype in (setting.dtype, torch.int8, torch.float8_e4m3fn):
        for tokens in (setting.size(16, 1), setting.size(2048, 3)):
            yield _case(setting, tokens, cache_dtype)


def _case(setting: Setting, tokens: int, cache_dtype: torch.dtype) -> Case:
    heads, kv_heads, size = setting.size(32, 3), setting.size(8, 1), setting.size(128, 32)
    qkv = setting.normal(tokens, (heads + 2 * kv_heads) * size)
    turns = torch.rand(tokens, size // 2, device=setting.device) * 6
    blocks = -(-tokens // BLOCK)

    def job(kind: type[Kernels]) -> Tensors:
        cache = KVCache(1, blocks, BLOCK, kv_heads, size, dtype=cache_dtype, device=setting.device)
        kernels = kind(cache, turns.cos(), turns.sin(), heads)
        q = kernels.rotate_store(0, qkv.clone(), Layout([Span(0, tokens, range(blocks))], cache))
        return q, *_kept(cache, tokens)

    cache = KVCache(1, blocks, BLOCK, kv_heads, size, dtype=cache_dtype, device=setting.device)
    layout = Layout([Span(0, tokens, range(blocks))], cache)
    kernels = Cuda(cache, turns.cos(), turns.sin(), heads)
    kv_bytes = 2 * tokens * kv_heads * size
    return Case(
        name=f"rotate_store into {str(cache_dtype).removeprefix('torch.')}, {tokens} tokens",
        kernels=("rotate",),
        check=lambda: (job(Cuda), job(Kernels)),
        run=lambda: kernels.rotate_store(0, qkv, layout),
        bytes=qkv.nbytes + tokens * heads * size * qkv.element_size() + kv_bytes * cache_dtype.itemsize,
        tolerance=max(TOLERANCE[setting.dtype], TOLERANCE.get(cache_dtype, FLOAT8_TOLERANCE)),
    )


def _kept(cache: KVCache, tokens: int) -> Tensors:
    """The keys and values of the tokens, as numbers."""
    sides = ((cache.keys, cache.key_scales), (cache.values, cache.value_scales))
    whole = (side if scales is None else dequantize(side, scales) for side, scales in sides)
    return tuple(each[0].flatten(0, 1)[:tokens] for each in whole)
