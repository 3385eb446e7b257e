"""What an engine's outputs for one generation say, as deltas: ids become text and calls, and scores the tokens they
are of."""

import logging
from collections.abc import Callable, Sequence

import msgspec

from backends.backend import (
    BackendError,
    DeadlineExceeded,
    Delta,
    Finish,
    Overloaded,
    Rejected,
    TokenScore,
    Unavailable,
    Usage,
)
from backends.tokenizer import Tokenizer
from backends.tools.parser import CallParser, Said
from backends.wire import Output, Refused, Sampling, Score, Timings

_log = logging.getLogger(__name__)


class DeltaReader:
    """Reads the outputs of all answers to one prompt, in the order they come."""

    def __init__(
        self,
        engine: str,
        prompt: list[int],
        sampling: Sampling,
        tokenizer: Tokenizer,
        parser: Callable[[], CallParser] | None = None,
    ) -> None:
        """`parser`: makes what finds the calls in an answer, where there may be any."""
        self._engine = engine
        self._prompt = prompt
        self._answers = [
            _Answer(index, sampling.stop, tokenizer, None if parser is None else parser())
            for index in range(sampling.n)
        ]
        self._running = sampling.n
        self._prompt_due = sampling.prompt_logprobs
        self._tokenizer = tokenizer
        self._cached = 0
        self._timings: Timings | None = None  # of the first answer

    @property
    def ended(self) -> bool:
        """Whether the engine has said its last word."""
        return not self._running

    def take(self, message: Output | Refused | BackendError) -> Delta | None:
        """None where there is nothing to say yet. Raises BackendError where the generation has failed."""
        if isinstance(message, BackendError):
            raise message
        if isinstance(message, Refused):
            self._running = 0
            raise _refusal(message)
        self._running -= message.finish is not None
        self._check(message)
        if not message.index:
            self._cached, self._timings = message.cached, message.timings
        delta = self._answers[message.index].take(message)
        if self._prompt_due and not message.index:
            self._prompt_due = False
            delta = msgspec.structs.replace(delta or Delta(), prompt=self._prompt_scores(message.prompt))
        return delta if delta is None or not self.ended else self._last(delta, message.timings)

    def _check(self, output: Output) -> None:
        if output.fault is not None:
            raise Rejected(_in_the_clients_words(output.fault), "invalid")
        if output.finish == "error":
            _log.error("%s: generation failed: %s", self._engine, output.error)
            raise Unavailable(f"engine {self._engine} failed at this request", "engine_error")
        if output.finish == "deadline":
            late = DeadlineExceeded("the request's time is used up")
            late.timings = output.timings
            raise late

    def _prompt_scores(self, scores: Sequence[Score]) -> tuple[TokenScore, ...]:
        first, *rest = self._prompt
        text, data = self._tokenizer.token(first)
        known = (token_score(self._tokenizer, id, score) for id, score in zip(rest, scores, strict=True))
        return TokenScore(text=text, data=data, logprob=None), *known

    def _last(self, delta: Delta, timings: Timings | None) -> Delta:
        """The prompt counts once, and so does its time."""
        if timings is not None and self._timings is not None:
            timings = msgspec.structs.replace(self._timings, finished=timings.finished)
        usage = Usage(
            prompt_tokens=len(self._prompt),
            completion_tokens=sum(answer.tokens for answer in self._answers),
            cached_tokens=self._cached,
        )
        return msgspec.structs.replace(delta, usage=usage, timings=timings)


class _Answer:
    """One of them. Tokens wait for the whole character that they are part of, and their scores with them.

    So do those of what may become a call, until it is known to be one or not.
    """

    def __init__(
        self, index: int, stops: tuple[str, ...], tokenizer: Tokenizer, parser: CallParser | None
    ) -> None:
        self.tokens = 0
        self._index = index
        self._stops = stops
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer()
        self._parser = parser
        self._untold = 0
        self._scores: list[TokenScore] = []  # of untold tokens

    def take(self, output: Output) -> Delta | None:
        self.tokens += len(output.ids)
        self._untold += len(output.ids)
        if output.finish is not None:
            return self._last(output)
        self._score(output, len(output.ids))
        text = self._detokenizer.push(output.ids)
        said = Said(text) if self._parser is None else self._parser.push(text)
        if said.text or said.calls:
            return self._told(said, output)
        if output.signals:  # whoever judges does not wait for whole characters or calls
            return Delta(index=self._index, signals=tuple(output.signals), cached=output.cached)
        return None

    def _last(self, output: Output) -> Delta:
        text = self._detokenizer.finish(output.ids, output.trim)
        if output.scores:
            self._score(output, self._said(output))
        told = self._told(Said(text) if self._parser is None else self._parser.finish(text), output)
        stop = self._stopped_by()
        return msgspec.structs.replace(told, finish=self._finish(output, stop), stopped_by=stop)

    def _finish(self, output: Output, stop: str | None) -> Finish | None:
        """An answer that calls waits for the results, whatever ended it, unless it was cut off: by its length, or by
        `stop` in the middle of a call."""
        parser = self._parser
        if parser is None or not parser.called or (stop is not None and parser.within):
            return output.finish
        return "tool_calls" if output.finish == "stop" else output.finish

    def _told(self, said: Said, output: Output) -> Delta:
        delta = Delta(
            index=self._index,
            text=said.text,
            calls=said.calls,
            tokens=self._untold,
            scores=tuple(self._scores),
            signals=tuple(output.signals),
            cached=output.cached,
        )
        self._untold, self._scores = 0, []
        return delta

    def _score(self, output: Output, count: int) -> None:
        """Keep the scores of the first `count` ids, if there are any."""
        for id, score in zip(output.ids[:count], output.scores, strict=False):
            self._scores.append(token_score(self._tokenizer, id, score))

    def _said(self, output: Output) -> int:
        """How many of the last ids are part of the text: an end token is not, nor what a stop string has taken."""
        if output.finish != "stop":
            return len(output.ids)
        said, trim = len(output.ids), output.trim
        while said:
            said -= 1
            trim -= len(self._tokenizer.token(output.ids[said])[1])
            if trim <= 0:
                break
        return said + (trim < 0)  # the match began inside this token

    def _stopped_by(self) -> str | None:
        """The stop string whose match ended first; of all that begin what was trimmed, that is the shortest."""
        trimmed = self._detokenizer.trimmed
        matched = [stop for stop in self._stops if trimmed.startswith(stop.encode())]
        return min(matched, key=len, default=None)


def token_score(tokenizer: Tokenizer, id: int, score: Score) -> TokenScore:
    """With its alternatives, each token decoded alone."""
    text, data = tokenizer.token(id)
    top = []
    for other, logprob in score.top:
        other_text, other_data = tokenizer.token(other)
        top.append(TokenScore(text=other_text, data=other_data, logprob=logprob))
    return TokenScore(text=text, data=data, logprob=score.logprob, top=tuple(top))


def _refusal(refused: Refused) -> BackendError:
    message = _in_the_clients_words(refused.message)
    if refused.code == "overloaded":
        return Overloaded(message, retry_after=refused.retry_after)
    return Rejected(message, refused.code)


def _in_the_clients_words(message: str) -> str:
    """The engine's field `sampling.n` is the client's `n`."""
    return message.removeprefix("sampling.")
