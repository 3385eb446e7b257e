"""What changes the model's logits before a token is chosen: bias, tokens that must not come, penalties.

In this order, in float32, on a row's own logits only. A row that asks for nothing costs nothing.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from backends.engine.batch import Row, Seen, Words
from backends.wire import Sampling


def adjust(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """`logits` [rows, vocabulary] as they are sampled from; a copy where any row asks, since scores want the raw ones.

    All rows have a `sampling`.
    """
    asking = [(at, row) for at, row in enumerate(rows) if _asks(row)]
    if not asking:
        return logits
    logits = logits.to(torch.float32, copy=True)
    for at, row in asking:
        _adjust(logits[at], row)
    return logits


def _asks(row: Row) -> bool:
    sampling = row.sampling
    asked = row.seen is not None or bool(row.banned) or row.allowed is not None
    return asked or bool(sampling and sampling.logit_bias)


def _adjust(logits: torch.Tensor, row: Row) -> None:
    """One row's [vocabulary], in place."""
    sampling = row.sampling
    assert sampling is not None
    if sampling.logit_bias:
        logits[_ids(sampling.logit_bias, logits)] += logits.new_tensor(list(sampling.logit_bias.values()))
    if row.banned:
        logits[_ids(row.banned, logits)] = -torch.inf
    if row.allowed is not None:
        logits.masked_fill_(_forbidden(row.allowed, logits), -torch.inf)
    if row.seen is not None:
        _penalise(logits, row.seen, sampling)


def _penalise(logits: torch.Tensor, seen: Seen, sampling: Sampling) -> None:
    """Repetition as in CTRL (arXiv:1909.05858, section 4.1), with its sense kept for negative logits; presence and
    frequency as OpenAI's reference defines them, over what the answer has said."""
    if sampling.repetition_penalty != 1:
        ids = _ids(seen.prompt | seen.output.keys(), logits)
        known = logits[ids]
        penalty = sampling.repetition_penalty
        penalised = torch.where(known > 0, known / penalty, known * penalty)
        logits[ids] = penalised.clamp(max=torch.finfo(torch.float32).max)  # an infinite one has no odds
    if seen.output and (sampling.presence_penalty or sampling.frequency_penalty):
        counts = logits.new_tensor(list(seen.output.values()))
        logits[_ids(seen.output, logits)] -= sampling.presence_penalty + sampling.frequency_penalty * counts


def _forbidden(allowed: Words, logits: torch.Tensor) -> torch.Tensor:
    bits = np.unpackbits(allowed.view(np.uint8), count=len(logits), bitorder="little")
    return torch.from_numpy(bits).to(logits.device) == 0


def _ids(tokens: Iterable[int], logits: torch.Tensor) -> torch.Tensor:
    return torch.tensor(list(tokens), dtype=torch.int64, device=logits.device)
