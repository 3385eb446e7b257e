"""From logits to tokens: greedy, or a draw after temperature, top-k, top-p and min-p, in this order and in float32.

Rows know nothing of one another: a row's token depends on its logits, its Sampling and its position only.
"""

import math
from collections.abc import Sequence

import torch

from backends.kernels.noise import row_key
from backends.kernels.reference import Kernels
from backends.wire import Sampling

# So many of the likeliest tokens usually hold the nucleus of top-p; where they don't, the whole row is sorted.
NUCLEUS = 1024


def sample(
    logits: torch.Tensor, samplings: Sequence[Sampling], positions: Sequence[int], kernels: Kernels
) -> torch.Tensor:
    """One id per row of `logits` [rows, vocabulary], int64 [rows] on their device.

    `positions`: where in its sequence each token will stand; the noise is drawn from seed and position.
    """
    logits = logits.float()
    ids: torch.Tensor = logits.max(-1).indices  # argmax, by the kernel that vectorises
    drawn = [row for row, sampling in enumerate(samplings) if sampling.temperature > 0]
    if not drawn:
        return ids
    chosen = [samplings[row] for row in drawn]
    keys = [row_key(sampling.seed, positions[row]) for row, sampling in zip(drawn, chosen, strict=True)]
    index = torch.tensor(drawn, device=logits.device)
    scores = truncate(logits[index], chosen)
    ids[index] = kernels.draw(scores, torch.tensor(keys, device=logits.device))
    return ids


def truncate(logits: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Scores [rows, vocabulary] whose softmax is the law to draw from: 0 for the likeliest token, -inf for those
    that top-k, top-p or min-p leave out. Tokens equal to the last one kept are kept too, so that ids break no ties."""
    temperatures = logits.new_tensor([sampling.temperature for sampling in samplings])
    temperatures.clamp_(min=torch.finfo(torch.float32).tiny)  # 0 / 0 is no score
    scores = (logits - logits.amax(-1, keepdim=True)) / temperatures[:, None]
    for row, sampling in enumerate(samplings):
        if 0 < sampling.top_k < scores.shape[1]:
            _drop_below(scores[row], scores[row].topk(sampling.top_k).values[-1])
        if sampling.top_p < 1:
            _drop_below(scores[row], _nucleus_edge(scores[row], sampling.top_p))
        if sampling.min_p > 0:
            _drop_below(scores[row], scores.new_tensor(math.log(sampling.min_p)))
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
