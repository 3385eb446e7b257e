"""What changes the model's logits before a token is chosen: bias, tokens that must not come, penalties.

In this order, in float32, on a row's own logits only. A choice that asks for nothing costs nothing.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from backends.engine.batch import Choice, Pick, Seen, Words
from backends.kernels.transfer import upload
from backends.wire import Sampling


def adjust(logits: torch.Tensor, picks: Sequence[Pick]) -> torch.Tensor:
    """`logits` [picks, vocabulary] as they are sampled from; a copy where any asks, since scores want the raw ones."""
    asking = [(at, pick) for at, pick in enumerate(picks) if _asks(pick)]
    if not asking:
        return logits
    logits = logits.to(torch.float32, copy=True)
    for at, pick in asking:
        _adjust(logits[at], pick.sampling, pick.choice)
    return logits


def _asks(pick: Pick) -> bool:
    choice = pick.choice
    asked = choice.seen is not None or bool(choice.banned) or choice.allowed is not None
    return asked or bool(pick.sampling.logit_bias)


def _adjust(logits: torch.Tensor, sampling: Sampling, choice: Choice) -> None:
    """One row's [vocabulary], in place."""
    if sampling.logit_bias:
        biases = upload(list(sampling.logit_bias.values()), logits.device, np.float32)
        logits[_ids(sampling.logit_bias, logits)] += biases
    if choice.banned:
        logits[_ids(choice.banned, logits)] = -torch.inf
    if choice.allowed is not None:
        logits.masked_fill_(_forbidden(choice.allowed, logits), -torch.inf)
    if choice.seen is not None:
        _penalise(logits, choice.seen, sampling)


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
        counts = upload(list(seen.output.values()), logits.device, np.float32)
        logits[_ids(seen.output, logits)] -= sampling.presence_penalty + sampling.frequency_penalty * counts


def _forbidden(allowed: Words, logits: torch.Tensor) -> torch.Tensor:
    bits = np.unpackbits(allowed.view(np.uint8), count=len(logits), bitorder="little")
    return upload(bits, logits.device) == 0


def _ids(tokens: Iterable[int], logits: torch.Tensor) -> torch.Tensor:
    return upload(list(tokens), logits.device, np.int64)
