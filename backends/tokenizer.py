"""Text to token ids and back, without torch: `tokenizers`, and chat templates in a sandboxed jinja2."""

from pathlib import Path

from backends.prompt import Prompt


class TemplateError(ValueError):
    """The chat template refuses this conversation; the message is the template's own."""


class Tokenizer:
    """The tokenizer of one model folder (tokenizer.json, tokenizer_config.json). Safe to share between tasks."""

    def __init__(self, folder: Path) -> None:
        raise NotImplementedError

    @property
    def family(self) -> str:
        """Equal for tokenizers and templates that give equal ids; a prompt is encoded once per family."""
        raise NotImplementedError

    async def encode(self, prompt: Prompt) -> list[int]:
        """Render (for conversations, with the generation prompt) and encode, in a thread. Raises TemplateError."""
        raise NotImplementedError

    def vocabulary(self) -> list[bytes]:
        """For each id its bytes; empty for special tokens and for ids that stand for nothing."""
        raise NotImplementedError

    def detokenizer(self) -> "Detokenizer":
        raise NotImplementedError


class Detokenizer:
    """Ids of one answer to text, piece by piece: pieces joined = whole text, no U+FFFD for text valid in the end."""

    def push(self, ids: list[int]) -> str:
        raise NotImplementedError

    def finish(self, ids: list[int], trim: int) -> str:
        """The last ids; the last `trim` bytes of the whole text are dropped (they were held back, see wire.Output)."""
        raise NotImplementedError
