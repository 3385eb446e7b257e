"""Text to token ids and back, without torch: `tokenizers`, and chat templates in a sandboxed jinja2.

Also the engine's vocabulary file (`write_vocabulary`). The engine matches stop strings and grammars on the bytes in it
and knows nothing else of text.
"""

import asyncio
import codecs
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from backends.catalogue import ModelError
from backends.chat_template import ChatTemplate, Fields, TemplateError, message_fields, tool_fields
from backends.infill import find_infill
from backends.prompt import ChatMessage, Prompt, Tool
from backends.tools.formats import ToolSupport, support
from backends.wire import Vocabulary

__all__ = ["Detokenizer", "TemplateError", "Tokenizer", "write_vocabulary"]

SHORT = 2000  # characters
PER_MESSAGE = 50  # characters that a template takes as long for

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class _Layout(msgspec.Struct):
    """The part of tokenizer.json that says how tokens are spelled."""

    decoder: dict[str, Any] = {}


class Tokenizer:
    """The tokenizer of one model folder (tokenizer.json, tokenizer_config.json). Safe to share between tasks."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelError for a folder without a readable tokenizer."""
        if folder.suffix == ".gguf":
            raise ModelError(
                f"{folder} has no tokenizer.json; convert it first: python -m backends.convert {folder} FOLDER"
            )
        content = _read(folder / "tokenizer.json")
        config = _decode(folder / "tokenizer_config.json", b"{}")
        template = _template(folder, config)
        tokens = {name: _text(token) for name, token in config.items() if name.endswith("_token") and token}
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
            self._template = None if template is None else ChatTemplate(template, tokens)
        except Exception as error:  # tokenizers raises nothing narrower
            raise ModelError(f"{folder}: {error}") from error
        self._byte_level = _is_byte_level(msgspec.json.decode(content, type=_Layout).decoder)
        self._family = hashlib.sha256(content + json.dumps([template, tokens]).encode()).hexdigest()
        added = self._tokenizer.get_added_tokens_decoder().values()
        self.infill = find_infill(self._tokenizer.token_to_id)  # None: the model cannot fill gaps
        special = {token.content for token in added if token.special}
        special.update(self.infill.names if self.infill is not None else ())
        names = "|".join(sorted(map(re.escape, special)))
        self._special = re.compile(f"(?=(?:{names}))") if special else None

    @cached_property
    def tools(self) -> ToolSupport:
        """Whether conversations may have tools, and how the model writes its calls."""
        template = self._template
        if template is None:
            return ToolSupport(False, None)
        return support(lambda messages, tools: self._render(template, messages, tools, {}, cut=""))

    @property
    def family(self) -> str:
        """Equal for tokenizers and templates that give equal ids; a prompt is encoded once per family."""
        return self._family

    async def encode(self, prompt: Prompt) -> list[int]:
        """Render (for conversations, with the generation prompt) and encode, in a thread unless that would take longer
        than the work. Raises TemplateError.

        A text to continue is encoded as it is: control tokens written in it are control tokens, for who writes it
        writes the whole prompt, and may have a template of their own. A BOS comes first where the tokenizer adds
        one; an empty text may thus be no token at all. In a conversation control tokens come from the template only,
        and around a gap only those that mark it; what a message or a file says that looks like one stays text.
        """
        return (
            self.encode_now(prompt) if _is_short(prompt) else await asyncio.to_thread(self.encode_now, prompt)
        )

    def encode_now(self, prompt: Prompt) -> list[int]:
        """What `encode` does, on the calling thread: not for an event loop where a prompt may be long."""
        if prompt.ids is not None:
            return list(prompt.ids)
        if prompt.text is not None and prompt.suffix is not None:
            return self._around_gap(prompt.text, prompt.suffix)
        if prompt.text is not None:
            return self._ids([prompt.text], add_special_tokens=True)
        if self._template is None:
            raise TemplateError("this model has no chat template; it continues plain text only")
        if prompt.speaks_of_tools and not self.tools.told:
            raise TemplateError("this model's chat template knows no tools")
        # Encoding in two pieces what is cut inside a control token's name leaves nothing to be recognised, and the
        # pieces' ids stand for the same text. Conversations without such names, all but a few, are one piece. The cut
        # is made of hexadecimal digits, which no template's JSON escapes.
        cut = secrets.token_hex(16)
        rendered = self._render(self._template, prompt.messages, prompt.tools, prompt.options, cut)
        return self._ids(rendered.split(cut), add_special_tokens=False)

    def _render(
        self,
        template: ChatTemplate,
        messages: Sequence[ChatMessage],
        tools: Sequence[Tool],
        options: Fields,
        cut: str,
    ) -> str:
        said = [self._defused(message_fields(message), cut) for message in messages]
        told = [self._defused(tool_fields(tool), cut) for tool in tools]
        return template.render(said, told, self._defused(options, cut))

    def _around_gap(self, before: str, after: str) -> list[int]:
        if self.infill is None:
            raise TemplateError("this model was not taught to fill gaps")
        begin = self._ids([""], add_special_tokens=True)
        encoded = [self._ids(self._disarmed(text), add_special_tokens=False) for text in (before, after)]
        return begin + self.infill.around(*encoded)

    def _ids(self, texts: list[str], add_special_tokens: bool) -> list[int]:
        # Unlike `encode`, the batch call releases the interpreter while it works.
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [id for encoding in encodings for id in encoding.ids]

    def _defused(self, fields: Fields, cut: str) -> Fields:
        """The same, with `cut` behind the first character of each control token's name, however deep it lies."""
        if self._special is None:
            return fields
        defused: Fields = _rewritten(fields, lambda text: cut.join(self._disarmed(text)))
        return defused

    def _disarmed(self, text: str) -> list[str]:
        """The text in pieces, cut behind the first character of each control token's name, overlapping ones too."""
        if self._special is None:
            return [text]
        starts = [match.start() + 1 for match in self._special.finditer(text)]
        return [text[start:end] for start, end in zip([0, *starts], [*starts, len(text)], strict=True)]

    def vocabulary(self) -> list[bytes]:
        """For each id its bytes; empty for special tokens and for ids that stand for nothing.

        The marks of calls are text even where they are special: calls are found in the text.
        """
        return self._vocabulary

    def id_of(self, token: str) -> int | None:
        """The id of a token by its name, None where there is none."""
        id: int | None = self._tokenizer.token_to_id(token)
        return id

    @cached_property
    def _vocabulary(self) -> list[bytes]:
        tokens = self._tokenizer.get_vocab(with_added_tokens=True)
        added = self._tokenizer.get_added_tokens_decoder()
        spell = _byte_level_bytes if self._byte_level else _sentencepiece_bytes
        form = self.tools.format
        marks = () if form is None else (form.begin, form.end)
        vocabulary = [b""] * (max(tokens.values()) + 1)
        for token, id in tokens.items():
            if id not in added:
                vocabulary[id] = spell(token)
            elif not added[id].special or token in marks:
                vocabulary[id] = added[id].content.encode()
        return vocabulary

    def names(self) -> dict[int, str]:
        """Control tokens by id: a grammar can ask for them by name alone. Others are text, marks of calls among them,
        and a grammar that asks for this text gets it in whichever tokens the model likes."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {id: token.content for id, token in sorted(added.items()) if not self._vocabulary[id]}

    def token(self, id: int) -> tuple[str, bytes]:
        """One token decoded alone: its text, with U+FFFD for what is no whole character, and its bytes.

        A control token has its name for text and no bytes; an id without meaning has neither.
        """
        data = self._vocabulary[id] if id < len(self._vocabulary) else b""
        return data.decode("utf-8", "replace") or self._tokenizer.id_to_token(id) or "", data

    def detokenizer(self) -> "Detokenizer":
        return Detokenizer(self._vocabulary)


class Detokenizer:
    """Ids of one answer to text, piece by piece: pieces joined = whole text, no U+FFFD for text valid in the end."""

    def __init__(self, vocabulary: Sequence[bytes]) -> None:
        self.trimmed = b""  # what `finish` dropped: a stop string, and what came behind it
        self._vocabulary = vocabulary
        self._pending = b""  # the beginning of a character

    def push(self, ids: list[int]) -> str:
        """All text that is certain by now; the beginning of a character waits for the rest."""
        data = self._pending + self._bytes(ids)
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    def finish(self, ids: list[int], trim: int) -> str:
        """The last ids; the last `trim` bytes of the whole text are dropped (they were held back, see wire.Output).

        Raises ValueError if they were not held back but pushed.
        """
        data = self._pending + self._bytes(ids)
        self._pending = b""
        if not 0 <= trim <= len(data):
            raise ValueError(f"trim is {trim}, but only {len(data)} bytes were held back")
        self.trimmed = data[len(data) - trim :]
        return data[: len(data) - trim].decode("utf-8", "replace")

    def _bytes(self, ids: list[int]) -> bytes:
        known = len(self._vocabulary)  # a model may have more ids, which stand for nothing
        return b"".join(self._vocabulary[id] for id in ids if id < known)


def _is_short(prompt: Prompt) -> bool:
    """Whether it is encoded before a thread would have woken up. Templates may do anything with tools and options."""
    if prompt.tools or prompt.options:
        return False
    return sum(prompt.lengths()) + PER_MESSAGE * len(prompt.messages) <= SHORT


def write_vocabulary(tokenizer: Tokenizer, path: Path) -> None:
    """The engine's vocabulary file, whole or not at all: `wire.Vocabulary` in msgpack."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    vocabulary = Vocabulary(tokenizer.vocabulary(), tokenizer.names())
    partial.write_bytes(msgspec.msgpack.encode(vocabulary))
    partial.rename(path)


def same_vocabulary(model: Path, other: Path) -> bool:
    """Whether both mean the same by each id. Raises ModelError for a folder without a readable tokenizer."""
    ours, theirs = Tokenizer(model), Tokenizer(other)
    return (ours.vocabulary(), ours.names()) == (theirs.vocabulary(), theirs.names())


def _rewritten(value: Any, rewrite: Callable[[str], str]) -> Any:
    """`value`, in which every text is rewritten, keys of objects too."""
    match value:
        case str():
            return rewrite(value)
        case dict():
            return {rewrite(key): _rewritten(each, rewrite) for key, each in value.items()}
        case list():
            return [_rewritten(each, rewrite) for each in value]
    return value


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error


def _decode(path: Path, missing: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(_read(path) if path.exists() else missing, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ModelError(f"{path}: {error}") from error


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The template's source: a file of its own, or in the config, where there may be several by name."""
    own = folder / "chat_template.jinja"
    if own.exists():
        return _read(own).decode("utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((each["template"] for each in template if each["name"] == "default"), None)
    return template


def _text(token: str | Mapping[str, str]) -> str:
    return token if isinstance(token, str) else token["content"]


def _is_byte_level(decoder: Mapping[str, Any]) -> bool:
    """Whether tokens are spelled in GPT-2's byte alphabet; else they are sentencepiece's."""
    return any(part.get("type") == "ByteLevel" for part in [decoder, *decoder.get("decoders", [])])


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones are themselves, the others follow from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(0x100)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    return bytes(_ALPHABET[char] for char in token)


def _sentencepiece_bytes(token: str) -> bytes:
    """A space is written as U+2581, a byte that is no character as <0xNN>."""
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()
