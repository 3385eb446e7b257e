"""What is done to each row alone: norms and gates, at the width of a 7B model."""

from collections.abc import Callable, Iterator

import torch

from backends.kernels.cuda import Cuda
from backends.kernels.layout import KVCache
from backends.kernels.reference import Kernels
from benchmarks.gpu_kernels.case import Case, Setting, Tensors

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
HEADS, KV_HEADS = 32, 8
Job = Callable[[Kernels], Tensors]


def cases(setting: Setting) -> Iterator[Case]:
    width, inner = setting.size(4096, 77), setting.size(14336, 150)
    for rows in (setting.size(16, 2), setting.size(2048, 5)):
        yield _norm(setting, rows, width)
        yield _heads(setting, rows)
        gate_up = setting.normal(rows, 2 * inner)
        for name in ("silu_mul", "gelu_mul"):
            job = _gate(name, gate_up)
            yield _case(setting, f"{name}, {rows} rows", "gate_mul", job, gate_up.nbytes * 1.5)


def _case(setting: Setting, name: str, kernel: str, job: Job, bytes: float) -> Case:
    size = setting.size(128, 20)
    cache = KVCache(1, 1, 16, KV_HEADS, size, dtype=setting.dtype, device=setting.device)
    table = torch.zeros(16, size // 2, device=setting.device)
    plain, ours = (kind(cache, table, table, HEADS) for kind in (Kernels, Cuda))
    return Case(
        name=name,
        kernels=(kernel,),
        check=lambda: (job(ours), job(plain)),
        run=lambda: job(ours),
        bytes=bytes,
        tolerance=TOLERANCE[setting.dtype],
    )


def _norm(setting: Setting, rows: int, width: int) -> Case:
    update = setting.normal(rows, width)
    weight = torch.rand(width, device=setting.device)
    stream = torch.randn(rows, width, device=setting.device)

    def job(kernels: Kernels) -> Tensors:
        residual = stream.clone()
        return kernels.add_norm(residual, update, weight, 1e-5), residual

    # The copy of the stream is timed along with it: read and written once more.
    return _case(setting, f"add_norm, {rows} rows", "norm", job, 2 * update.nbytes + 4 * stream.nbytes)


def _heads(setting: Setting, rows: int) -> Case:
    size = setting.size(128, 20)
    qkv = setting.normal(rows, (HEADS + 2 * KV_HEADS) * size)
    weights = [torch.rand(size, device=setting.device) for _ in range(2)]

    def job(kernels: Kernels) -> Tensors:
        own = qkv.clone()
        kernels.norm_heads(own, weights[0], weights[1], 1e-6)
        return (own,)

    return _case(setting, f"norm_heads, {rows} rows", "norm_each", job, 4 * qkv.nbytes)


def _gate(name: str, gate_up: torch.Tensor) -> Job:
    return lambda kernels: (getattr(kernels, name)(gate_up),)
