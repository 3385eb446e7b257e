"""What a remote server answers: its stream of chunks as deltas, its errors as ours.

Nothing that a server says is passed on but the text of the answer: its messages may quote the prompt, name addresses,
or be another provider's marketing. They are only searched for what kind of error it is.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from backends import remote_signals
from backends.backend import (
    BackendError,
    Delta,
    Finish,
    Generation,
    Overloaded,
    Rejected,
    Unavailable,
    Usage,
)
from backends.prompt import Prompt
from backends.remote_calls import CallDelta, CallReader
from backends.sse import Event

CHARACTERS_PER_TOKEN = 4  # of English; only where a server reports no usage
TOKENS_PER_MESSAGE = 4  # what a chat template adds
MAX_RETRY_AFTER = 3600.0  # seconds
DONE = b"[DONE]"
FILTERED = "the server's content filter has cut the answer off"

FINISH: dict[str, Finish] = {
    "stop": "stop",
    "eos_token": "stop",  # TGI's words
    "stop_sequence": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
}
TOO_LONG = ("context length", "context_length", "max_new_tokens` must", "`inputs` must have less than")
PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_.\[\]]{0,63}")

Count = Annotated[int, Meta(ge=0)]


class _Details(msgspec.Struct):
    cached_tokens: Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Count = 0
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[CallDelta] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None  # of a completion
    delta: _Message | None = None  # of a chat
    finish_reason: str | None = None
    logprobs: msgspec.Raw = msgspec.Raw()
    stop_reason: Any = None  # vLLM's word for what ended the text: a stop string or a token
    matched_stop: Any = None  # SGLang's


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_chunk = msgspec.json.Decoder(_Chunk)


class Reply:
    """One answer as it comes in. Pure: events in, deltas out."""

    def __init__(self, server: str, generation: Generation, *, repeats_stop: bool = False) -> None:
        """`repeats_stop`: the server leaves the stop string in the text, so it is cut here."""
        self._server = server
        self._prompt_tokens = _prompt_tokens(generation)
        self._stops = generation.sampling.stop
        self._signals = generation.sampling.signals
        self._stop = StopCut(self._stops if repeats_stop else ())
        self._stopped_by: str | None = None
        self._calls = CallReader(parallel=generation.prompt.tool_choice.parallel)
        self._heard = False
        self._tokens = 0
        self._finish: Finish | None = None
        self._filtered: Rejected | None = None
        self._usage: _Usage | None = None

    @property
    def heard(self) -> bool:
        """Whether the server has said anything, be it no text."""
        return self._heard

    @property
    def finished(self) -> bool:
        """Whether all text is there; only the usage may still come."""
        return self._finish is not None

    def deltas(self, events: Iterable[Event]) -> Iterator[Delta]:
        """The text of events. Raises BackendError; a filter's comes behind the text that it has let through."""
        for event in events:
            if (delta := self.take(event)) is not None:
                yield delta
            if self._filtered is not None:
                raise self._filtered

    def take(self, event: Event) -> Delta | None:
        """The text of an event, if it has any. Raises BackendError, but for a filter's."""
        self._heard = True
        if event.data == DONE:
            return None
        chunk = self._decode(event)
        if chunk.usage is not None:
            self._usage = chunk.usage
        if not chunk.choices or self.finished:
            return None
        return self._choice(chunk.choices[0])

    def _decode(self, event: Event) -> _Chunk:
        try:
            chunk = _chunk.decode(event.data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Unavailable(f"server {self._server} sent nonsense", "upstream_protocol") from error
        empty = chunk.choices is None and chunk.usage is None
        if chunk.error is not None or empty or event.type == b"error":
            raise in_band(self._server, event.data)
        return chunk

    def _choice(self, choice: _Choice) -> Delta | None:
        said = choice.text if choice.delta is None else choice.delta.content
        called = None if choice.delta is None else choice.delta.tool_calls
        calls = self._calls.take(called) if called else ()
        length = len(said or "")
        if calls:
            length += sum(len(piece.name or "") + len(piece.arguments) for piece in calls)
        tokens = _tokens(length) if length else 0
        self._tokens += tokens
        text = self._stop.push(said or "")
        if self._stop.found is not None:
            self._finish, self._stopped_by = "stop", self._stop.found
        elif choice.finish_reason is not None:
            if choice.finish_reason == "content_filter":
                self._filtered = Rejected(FILTERED, "content_filter")
            else:
                self._finish, self._stopped_by = self._reason(choice.finish_reason), self._matched(choice)
            text += self._stop.rest()
        signals = remote_signals.read(bytes(choice.logprobs)) if self._signals else ()
        if not (text or calls or signals):
            return None
        return Delta(text=text, calls=calls, tokens=tokens, signals=signals)

    def _reason(self, word: str) -> Finish:
        """Some servers call an answer with calls finished by `stop`, as if nothing were waited for."""
        if word in FINISH:
            finish = FINISH[word]
            return finish if finish == "length" else "tool_calls" if self._calls.called else "stop"
        raise Unavailable(f"server {self._server} broke the answer off", "upstream_error")

    def _matched(self, choice: _Choice) -> str | None:
        told = choice.stop_reason if choice.matched_stop is None else choice.matched_stop
        return told if isinstance(told, str) and told in self._stops else None

    def last(self) -> Delta:
        """What ends the answer; the usage is estimated from the text where the server gave none.

        Raises Unavailable `upstream_eof` when the stream has ended before the answer did.
        """
        if self._finish is None:
            raise Unavailable(f"server {self._server} ended the stream early", "upstream_eof")
        return Delta(finish=self._finish, usage=self._used(), stopped_by=self._stopped_by)

    def _used(self) -> Usage:
        reported = self._usage
        if reported is None:
            return Usage(prompt_tokens=self._prompt_tokens, completion_tokens=self._tokens)
        details = reported.prompt_tokens_details
        completion = reported.completion_tokens
        return Usage(
            prompt_tokens=reported.prompt_tokens,
            completion_tokens=self._tokens if completion is None else completion,
            cached_tokens=min((details and details.cached_tokens) or 0, reported.prompt_tokens),
        )


class StopCut:
    """Cuts a text that comes in pieces at the first stop string, which `found` then names.

    What may be the beginning of a stop string is held back until it is decided.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self.found: str | None = None
        self._stop = stop
        self._held = ""

    def push(self, text: str) -> str:
        """What can be said now."""
        if not self._stop:
            return text
        text = self._held + text
        ends = [(at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if ends:
            (end, self.found), self._held = min(ends), ""
            return text[:end]
        keep = max(_overlap(text, stop) for stop in self._stop)
        said, self._held = text[: len(text) - keep], text[len(text) - keep :]
        return said

    def rest(self) -> str:
        """At the end: what was held back for nothing."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of the text with which the stop string begins."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


def failure(server: str, status: int, body: bytes, headers: Mapping[str, str]) -> BackendError:
    """What an HTTP status other than 200 means. `body` may be anything. `headers`: names in lower case."""
    error = _error_of(body)
    if status in (401, 403):  # the operator's mistake, not the client's
        return Unavailable(f"server {server} refuses the gateway's key", "upstream_auth")
    if status in (404, 405):
        return Unavailable(f"server {server} does not have this model or endpoint", "upstream_not_found")
    if status in (429, 503, 529):
        return Overloaded(f"server {server} is overloaded", retry_after=_retry_after(headers))
    if status in (400, 413, 422):
        return _rejection(server, error)
    return Unavailable(f"server {server} failed with status {status}", "upstream_error")


def in_band(server: str, data: bytes) -> BackendError:
    """What an error means that comes inside a stream whose status was 200."""
    error = _error_of(data)
    code, type = str(error.get("code")), str(error.get("type") or error.get("error_type")).lower()
    if code.isdecimal() and 400 <= int(code) <= 599 and int(code) != 500:
        return failure(server, int(code), data, {})
    if _too_long(error) or type in ("badrequesterror", "invalid_request_error", "validation"):
        return _rejection(server, error)
    if type == "overloaded" or code == "server_is_overloaded":
        return Overloaded(f"server {server} is overloaded")
    return Unavailable(f"server {server} broke the answer off", "upstream_error")


def _rejection(server: str, error: Mapping[str, object]) -> Rejected:
    if _too_long(error):
        return Rejected("the prompt and max_tokens are longer together than this model's context")
    param = error.get("param")
    if isinstance(param, str) and PARAM.fullmatch(param):
        return Rejected(f"{param}: server {server} refuses this value", "upstream_rejected")
    return Rejected(f"server {server} refuses this request", "upstream_rejected")


def _too_long(error: Mapping[str, object]) -> bool:
    words = f"{error.get('code')} {error.get('message')}".lower()
    return any(sign in words for sign in TOO_LONG)


def _error_of(data: bytes) -> Mapping[str, object]:
    """The error object: OpenAI's `{"error": {…}}`, TGI's `{"error": "…", "error_type": …}`, or the object itself."""
    try:
        said = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    if not isinstance(said, dict):
        return {}
    error = said.get("error", said)
    return error if isinstance(error, dict) else {**said, "message": error}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds; a date, which nobody sends, counts as none."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "")
        if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
            return min(float(value) * unit, MAX_RETRY_AFTER)
    return None


def _tokens(characters: int) -> int:
    """Servers send about a token per chunk; some put several into one."""
    return max(1, characters // CHARACTERS_PER_TOKEN)


def _prompt_tokens(generation: Generation) -> int:
    if generation.ids is not None:
        return len(generation.ids)
    prompt: Prompt = generation.prompt
    if prompt.ids is not None:
        return len(prompt.ids)
    if prompt.text is not None:
        return _tokens(len(prompt.text))
    return sum(_tokens(length) + TOKENS_PER_MESSAGE for length in prompt.lengths())
