"""How a request wants its tokens chosen, as backends understand it."""

import secrets

from backends.backend import Sampling
from gateway.request import Request


def sampling_of(request: Request, default_max_tokens: int, ends: tuple[int, ...], watched: bool) -> Sampling:
    """`ends`: end tokens besides the model's own; `watched`: with signals of how sure the model is."""
    return Sampling(
        max_tokens=default_max_tokens if request.max_tokens is None else request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=request.seed if request.seed is not None else secrets.randbits(63),
        stop=request.stop,
        stop_token_ids=request.stop_token_ids + (() if request.ignore_eos else ends),
        ignore_eos=request.ignore_eos,
        min_p=request.min_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=dict(request.logit_bias),
        min_tokens=request.min_tokens,
        n=request.n,
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
        grammar=request.grammar,
        signals=watched,
    )
