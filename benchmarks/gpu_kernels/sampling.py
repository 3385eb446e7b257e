"""Truncation and the draw over whole vocabularies: a seed must give the token that plain torch gives."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from backends.kernels import triton_sampling, truncation
from backends.kernels.cuda import Cuda
from backends.kernels.layout import KVCache
from backends.kernels.noise import row_key
from backends.kernels.reference import Kernels
from benchmarks.gpu_kernels.case import Case, Setting


@dataclass(frozen=True)
class Law:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


LAWS = [Law(), Law(0.7, top_p=0.9), Law(1.2, top_k=40), Law(0.8, top_k=50, top_p=0.95), Law(min_p=0.05)]


def cases(setting: Setting) -> Iterator[Case]:
    vocabulary = setting.size(152_064, 300)
    for rows in (1, setting.size(64, 3)):
        laws = [LAWS[row % len(LAWS)] for row in range(rows)]
        logits = torch.randn(rows, vocabulary, device=setting.device) * 3
        yield _truncation(logits, laws)
        yield _draw(setting, truncation.truncate(logits, laws))


def _truncation(logits: torch.Tensor, laws: list[Law]) -> Case:
    """What is kept is compared by its mass: a token at the very edge may be in or out by a rounding."""

    def masses(scores: torch.Tensor) -> torch.Tensor:
        return scores.exp().sum(-1)

    return Case(
        name=f"truncate, {len(logits)} rows",
        kernels=("cut",),
        check=lambda: (
            (masses(triton_sampling.truncate(logits, laws)),),
            (masses(truncation.truncate(logits, laws)),),
        ),
        run=lambda: triton_sampling.truncate(logits, laws),
        bytes=2 * logits.nbytes,
        tolerance=1e-3,
    )


def _draw(setting: Setting, scores: torch.Tensor) -> Case:
    cache = KVCache(1, 1, 16, 1, 32, dtype=setting.dtype, device=setting.device)
    table = torch.zeros(16, 16, device=setting.device)
    plain, ours = (kind(cache, table, table, 1) for kind in (Kernels, Cuda))
    keys = torch.tensor([row_key(7, row) for row in range(len(scores))], device=setting.device)
    return Case(
        name=f"draw, {len(scores)} rows",
        kernels=("draw_pieces",),
        check=lambda: ((ours.draw(scores, keys),), (plain.draw(scores, keys),)),
        run=lambda: ours.draw(scores, keys),
        bytes=scores.nbytes,
        tolerance=0.0,
    )
