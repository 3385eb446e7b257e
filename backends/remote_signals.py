"""How sure a remote server's model was of its tokens: its log-probabilities, as far as it gives any."""

import math

import msgspec

from backends.wire import Signal

LIKELIEST = 2  # tokens whose log-probabilities are asked for; all servers give at least five


class _Likely(msgspec.Struct):
    logprob: float


class _Chosen(_Likely):
    top_logprobs: list[_Likely] | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Chosen] | None = None  # of a chat
    token_logprobs: list[float | None] | None = None  # of a completion
    top_logprobs: list[dict[str, float] | None] | None = None


_logprobs = msgspec.json.Decoder(_Logprobs | None)


def asked(*, conversation: bool) -> dict[str, object]:
    """The fields of a request body that ask for them."""
    if conversation:
        return {"logprobs": True, "top_logprobs": LIKELIEST}
    return {"logprobs": LIKELIEST}


def read(told: bytes) -> tuple[Signal, ...]:
    """Of a choice's `logprobs`; none where a server writes something else there, or nothing."""
    try:
        logprobs = _logprobs.decode(told) if told else None
    except msgspec.MsgspecError:
        return ()
    if logprobs is None:
        return ()
    if logprobs.content is not None:
        return tuple(
            _signal(chosen.logprob, [each.logprob for each in chosen.top_logprobs or ()])
            for chosen in logprobs.content
        )
    chosen, tops = logprobs.token_logprobs or [], logprobs.top_logprobs or []
    padded = [*tops, *[None] * (len(chosen) - len(tops))]
    return tuple(
        _signal(logprob, list((top or {}).values()))
        for logprob, top in zip(chosen, padded, strict=False)
        if logprob is not None
    )


def _signal(logprob: float, top: list[float]) -> Signal:
    """Some servers write -9999 for what is as good as impossible; its margin is as good as endless."""
    best = sorted(filter(math.isfinite, top), reverse=True)[:2]
    return Signal(logprob, best[0] - best[1] if len(best) == 2 else None, None)
