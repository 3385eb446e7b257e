"""What a model is watched on while it is quantised: a file of texts, or what the model itself says.

A line of the file is JSON: {"text": …}, read as it stands, or {"prompt": …} or {"messages": […]}, put to the model by
its chat template. All tokens stand one behind another and are cut into sequences of one length.
"""

import gzip
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import torch

from backends.prompt import ChatMessage, Prompt
from backends.tokenizer import TemplateError, Tokenizer


class CalibrationError(ValueError):
    """A calibration cannot be used; the message names the file, its line and the reason."""


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str | None = None
    prompt: str | None = None
    messages: tuple[_Message, ...] | None = None

    def asked(self) -> Prompt:
        if self.text is not None:
            return Prompt(text=self.text)
        messages = self.messages or (_Message("user", self.prompt or ""),)
        return Prompt(messages=tuple(ChatMessage(role=each.role, content=each.content) for each in messages))


def read(path: Path, tokenizer: Tokenizer, samples: int, length: int) -> torch.Tensor:
    """int64 [samples, length], fewer where the file holds less. Raises CalibrationError, OSError."""
    ids = cut(_encoded(path, tokenizer, samples * length), samples, length)
    if not len(ids):
        raise CalibrationError(f"{path}: holds fewer tokens than one sequence of {length}; see --length")
    return ids


def origin(path: Path | None) -> str:
    """What tells one calibration from another. None: the model's own words. Raises OSError."""
    if path is None:
        return "builtin"
    with path.open("rb") as file:
        return f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"


def cut(tokens: Iterable[int], samples: int, length: int) -> torch.Tensor:
    """As many whole sequences as there are, `samples` at most: int64 [sequences, length]."""
    flat = torch.tensor(list(tokens)[: samples * length], dtype=torch.int64)
    return flat[: len(flat) // length * length].view(-1, length)


def _encoded(path: Path, tokenizer: Tokenizer, wanted: int) -> Iterator[int]:
    count = 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            ids = _ids(line, tokenizer, f"{path}, line {number}")
            count += len(ids)
            yield from ids
            if count >= wanted:
                return


def _ids(line: bytes, tokenizer: Tokenizer, place: str) -> list[int]:
    try:
        read = msgspec.json.decode(line, type=_Line)
        if [read.text, read.prompt, read.messages].count(None) != 2:
            raise ValueError("exactly one of text, prompt and messages is needed")
        return tokenizer.encode_now(read.asked())
    except (msgspec.MsgspecError, TemplateError, ValueError) as error:
        raise CalibrationError(f"{place}: {error}") from error
