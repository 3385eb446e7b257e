"""What a gateway would have made of a recorded answer: the very code that holds answers back is fed its tokens."""

from collections.abc import Iterator
from dataclasses import dataclass

from backends.backend import Delta, Usage
from backends.wire import Signal
from gateway.holding import Held
from gateway.judges import Brief
from gateway.judging import judge
from gateway.learning.recordings import Recording


@dataclass(frozen=True, slots=True)
class Judged:
    """`confidence`: P(good) by which it is kept or not, None where nothing can be said; `tokens`: made by then;
    `ended`: whether these are all."""

    confidence: float | None
    tokens: int
    ended: bool


def judged(recording: Recording, brief: Brief) -> Judged:
    """However long it takes: time plays no part. Each token is a delta of its own."""
    held = Held(brief)
    for delta in _deltas(recording):
        held.take(delta)
        if judge(brief.terms, held.seen(0.0, warming=True)) in ("commit", "escalate"):
            break
    tokens = min(held.tokens, recording.tokens)
    confidence = None if held.sight is None else held.sight.confidence
    return Judged(confidence, tokens, ended=tokens == recording.tokens)


def _deltas(recording: Recording) -> Iterator[Delta]:
    """Forced tokens come first: nothing that is judged hangs on their places."""
    forced = (Signal(0.0, None, None, forced=True),) * recording.forced
    free = [
        Signal(*signal)
        for signal in zip(recording.logprobs, recording.margins, recording.entropies, strict=True)
    ]
    for signals in (*([forced] if forced else []), *((each,) for each in free[:-1])):
        yield Delta(signals=signals)
    usage = Usage(prompt_tokens=recording.prompt_tokens, completion_tokens=recording.tokens)
    yield Delta(signals=tuple(free[-1:]), finish=recording.finish, usage=usage)
