"""Log probabilities in the shapes of OpenAI's two older endpoints, which have nothing in common."""

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from backends.backend import Delta, TokenScore

Object = dict[str, Any]


def joined_scores(deltas: Iterable[Delta]) -> list[TokenScore]:
    return [score for delta in deltas for score in delta.scores]


def chat_logprobs(scores: Sequence[TokenScore]) -> Object:
    """`choices[].logprobs` of a chat. `bytes` is null for control tokens."""
    content = [{**_token(score), "top_logprobs": [_token(other) for other in score.top]} for score in scores]
    return {"content": content, "refusal": None}


def _token(score: TokenScore) -> Object:
    return {"token": score.text, "logprob": score.logprob, "bytes": list(score.data) or None}


class CompletionLogprobs:
    """`choices[].logprobs` of a completion, told in pieces: four lists, one item a token.

    `text_offset` counts characters from the beginning of the choice's text; a token inside a character has the place
    of that character. `top_logprobs` holds the token itself too.
    """

    def __init__(self, begin: int = 0) -> None:
        """`begin`: the characters before the first token."""
        self._at = begin
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def told(self, scores: Sequence[TokenScore], text: str = "") -> Object:
        """`text`: that of a prompt, which may spell out its control tokens."""
        return {
            "tokens": [score.text for score in scores],
            "token_logprobs": [score.logprob for score in scores],
            "top_logprobs": [_alternatives(score) for score in scores],
            "text_offset": [self._advance(score, text) for score in scores],
        }

    def _advance(self, score: TokenScore, text: str) -> int:
        at = self._at
        if score.data:
            self._at += len(self._decoder.decode(score.data))
        elif text.startswith(score.text, at):
            self._at += len(score.text)
        return at


def _alternatives(score: TokenScore) -> Object | None:
    """Of tokens that read the same, the likeliest counts."""
    if score.logprob is None:
        return None
    alternatives: Object = {}
    for other in (*score.top, score):
        alternatives.setdefault(other.text, other.logprob)
    return alternatives
