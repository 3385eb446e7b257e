"""Temperature, top-k, top-p and min-p, in this order and in float32: what is left to draw a token from."""

import math
from collections.abc import Sequence
from typing import Protocol

import torch

# So many of the likeliest tokens usually hold the nucleus of top-p; where they don't, the whole row is sorted.
NUCLEUS = 1024


class Law(Protocol):
    """What one row's token is drawn by. `top_k` of 0, `top_p` of 1 and `min_p` of 0 keep all tokens."""

    @property
    def temperature(self) -> float: ...

    @property
    def top_k(self) -> int: ...

    @property
    def top_p(self) -> float: ...

    @property
    def min_p(self) -> float: ...


def truncate(logits: torch.Tensor, laws: Sequence[Law]) -> torch.Tensor:
    """Scores [rows, vocabulary] whose softmax is the law to draw from: 0 for the likeliest token, -inf for those
    that top-k, top-p or min-p leave out. Tokens equal to the last one kept are kept too, so that ids break no ties."""
    temperatures = logits.new_tensor([law.temperature for law in laws])
    temperatures.clamp_(min=torch.finfo(torch.float32).tiny)  # 0 / 0 is no score
    scores = (logits - logits.amax(-1, keepdim=True)) / temperatures[:, None]
    for row, law in enumerate(laws):
        if 0 < law.top_k < scores.shape[1]:
            _drop_below(scores[row], scores[row].topk(law.top_k).values[-1])
        if law.top_p < 1:
            _drop_below(scores[row], _nucleus_edge(scores[row], law.top_p))
        if law.min_p > 0:
            _drop_below(scores[row], scores.new_tensor(math.log(law.min_p)))
    return scores


def _drop_below(scores: torch.Tensor, edge: torch.Tensor) -> None:
    scores.masked_fill_(scores < edge, -torch.inf)


def _nucleus_edge(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """The score of the last token of the smallest set of likeliest tokens with a mass of `top_p`."""
    total = scores.logsumexp(-1)
    for most in (min(NUCLEUS, len(scores)), len(scores)):
        ranked = scores.topk(most).values
        mass = (ranked - total).exp().cumsum(-1)
        if mass[-1] >= top_p:
            break
    last = torch.searchsorted(mass, top_p).clamp(max=most - 1)
    return ranked[last]
