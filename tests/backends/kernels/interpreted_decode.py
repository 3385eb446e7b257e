"""Compares the kernels for GPUs with plain torch, on a CPU. Run with TRITON_INTERPRET=1 by test_triton_decode.py."""

import torch

from backends.kernels.cuda import Cuda
from backends.kernels.layout import KVCache, LayerRule, Layout, Scheme, Span
from backends.kernels.reference import Kernels

# heads, kv_heads, size, block size, type, window, soft cap
CASES = [
    (2, 2, 64, 16, torch.float32, None, None),
    (9, 3, 64, 16, torch.float32, None, None),
    (8, 2, 128, 16, torch.float16, None, None),
    (14, 2, 64, 16, torch.float16, None, None),
    (4, 1, 80, 32, torch.float32, None, None),
    (6, 2, 20, 5, torch.float32, 7, None),
    (2, 1, 64, 16, torch.float32, 33, 5.0),
    (4, 4, 32, 16, torch.float16, 1, None),
]


def check(
    heads: int,
    kv_heads: int,
    size: int,
    block: int,
    dtype: torch.dtype,
    window: int | None,
    cap: float | None,
) -> None:
    noise = torch.Generator().manual_seed(size)
    contexts = [(0, 1), (33, 2), (20, 18), (31, 1), (70, 1)]
    needed = [-(-(start + count) // block) for start, count in contexts]
    free = iter(torch.randperm(sum(needed) + 1, generator=noise).tolist())
    spans = [
        Span(start, count, [next(free) for _ in range(n)])
        for (start, count), n in zip(contexts, needed, strict=True)
    ]
    cache = KVCache(2, sum(needed) + 1, block, kv_heads, size, dtype=dtype)
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    for span in spans:
        for position in range(span.stop):
            for side in (cache.keys, cache.values):
                written = torch.randn(kv_heads, size, generator=noise).to(dtype)
                side[1, span.blocks[position // block], position % block] = written
    layout = Layout(spans, cache)
    table = torch.zeros(100, size // 2)
    scheme = Scheme(soft_cap=cap, rules=[LayerRule(window=window)] * 2)
    plain, ours = (kind(cache, table, table, heads, scheme) for kind in (Kernels, Cuda))
    q = torch.randn(len(layout.rows), heads, size, generator=noise).to(dtype)
    tolerance = 2e-6 if dtype == torch.float32 else 4e-3
    torch.testing.assert_close(ours.attend(1, q, layout), plain.attend(1, q, layout), atol=tolerance, rtol=0)


if __name__ == "__main__":
    for case in CASES:
        check(*case)
        print(*case)
    print(f"{len(CASES)} cases")
