"""A sample: prompts of the kind that a gateway gets, each with a checker of its answers. One JSON object per line.

prompt      what a user says; or `messages`, a whole conversation as in `/v1/chat/completions`
checker     {"kind": "number" | "regex" | "json" | "python" | "judge", …}, see `gateway.learning.checkers`
set         what it is a sample of; figures are told of each set
max_tokens  of the answer
"""

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from backends.prompt import ChatMessage, Prompt
from gateway.learning.checkers import Checker
from gateway.learning.recordings import Recording

MAX_TOKENS = 256
TOLD = 20  # faults at once


class SampleError(ValueError):
    """The message has a line for each fault, with its line and field."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    checker: Checker
    prompt: Annotated[str, Meta(min_length=1)] | None = None
    messages: Annotated[tuple[Message, ...], Meta(min_length=1)] | None = None
    set: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "sample"
    max_tokens: Annotated[int, Meta(ge=1, le=100_000)] = MAX_TOKENS

    @property
    def digest(self) -> str:
        """Of all that an outcome hangs on but the model: 32 hexadecimal digits."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:32]

    @property
    def conversation(self) -> tuple[ChatMessage, ...]:
        if self.messages is None:
            return (ChatMessage(role="user", content=self.prompt or ""),)
        return tuple(ChatMessage(role=each.role, content=each.content) for each in self.messages)

    @property
    def asked(self) -> Prompt:
        return Prompt(messages=self.conversation)

    @property
    def words(self) -> str:
        """What the person asks last, by which the gateway assesses it."""
        users = [message.content for message in self.conversation if message.role == "user"]
        return users[-1]

    def fault(self) -> str | None:
        if (self.prompt is None) == (self.messages is None):
            return "prompt: exactly one of prompt and messages is needed"
        if not any(message.role == "user" and message.content for message in self.conversation):
            return "messages: no user says anything"
        fault = self.checker.fault()
        return None if fault is None else f"checker.{fault}"


def load(path: Path) -> list[Sample]:
    """Of a .jsonl or .jsonl.gz file. Raises SampleError with every fault, OSError."""
    decoder = msgspec.json.Decoder(Sample)
    samples: dict[str, Sample] = {}
    faults = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            sample = decoder.decode(line)
            fault = sample.fault()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            fault = str(error)
        if fault is not None:
            faults.append(f"{path}, line {number}: {fault}")
        elif sample.digest in samples:
            faults.append(f"{path}, line {number}: the same sample stands above")
        else:
            samples[sample.digest] = sample
    if not (samples or faults):
        faults.append(f"{path}: is empty")
    if faults:
        raise SampleError("\n".join(_few(faults)))
    return list(samples.values())


def save(path: Path, samples: Iterable[Sample]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples))


def answered(
    samples: Iterable[Sample], recordings: Iterable[Recording], tiers: Sequence[str]
) -> list[Sample]:
    """Those that all of the tiers have answered."""
    found: dict[str, set[str]] = {}
    for each in recordings:
        found.setdefault(each.sample, set()).add(each.tier)
    return [sample for sample in samples if found.get(sample.digest, set()) >= set(tiers)]


def save_outcomes(path: Path, samples: Iterable[Sample], recordings: Iterable[Recording]) -> None:
    """The columns that `headrace train` reads: prompt, source, and y_TIER of each tier. Raises OSError."""
    found: dict[str, dict[str, float]] = {}
    for each in recordings:
        found.setdefault(each.sample, {})[f"y_{each.tier}"] = float(each.good)
    rows = [{"prompt": s.words, "source": s.set, **found[s.digest]} for s in samples if s.digest in found]
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def _lines(path: Path) -> list[bytes]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return list(file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SampleError(f"{path}: {error}") from error


def _few(faults: Sequence[str]) -> Sequence[str]:
    rest = len(faults) - TOLD
    return faults if rest <= 0 else [*faults[:TOLD], f"and {rest} more"]
