"""What a model is asked, before any tokenizer has seen it."""

import msgspec


class ChatMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a conversation, as a chat template sees it."""

    role: str
    content: str
    name: str | None = None


class Prompt(msgspec.Struct, frozen=True):
    """What the model is asked: a conversation, or a plain text to continue. Exactly one of the two."""

    messages: tuple[ChatMessage, ...] = ()
    text: str | None = None
