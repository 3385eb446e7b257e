"""Which words give a task away. A rule is precise rather than complete; the linear model knows the rest."""

from collections.abc import Callable
from dataclasses import dataclass, field

_BEGINNING = 12  # tokens; an instruction mostly stands there
_ZERO = ord("0")


@dataclass(slots=True)
class Words:
    """A prompt in lower-case UTF-8, and its tokens. Each digit of a token is written as 0."""

    text: bytes
    tokens: list[bytes]
    first: bytes = field(init=False)
    bag: frozenset[bytes] = field(init=False)
    beginning: frozenset[bytes] = field(init=False)
    numbers: int = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.tokens[0] if self.tokens else b""
        self.bag = frozenset(self.tokens)
        self.beginning = frozenset(self.tokens[:_BEGINNING])
        self.numbers = sum(token[0] == _ZERO for token in self.tokens)

    def begins(self, *sets: frozenset[bytes]) -> bool:
        """Whether a word of each set stands at the beginning."""
        for words in sets:
            if words.isdisjoint(self.beginning):
                return False
        return True

    def ends(self, words: frozenset[bytes]) -> bool:
        return not words.isdisjoint(self.tokens[-_BEGINNING:])

    def says(self, phrases: tuple[bytes, ...]) -> bool:
        for phrase in phrases:
            if phrase in self.text:
                return True
        return False


def _phrases(*phrases: str) -> tuple[bytes, ...]:
    return tuple(phrase.encode() for phrase in phrases)


def _set(words: str) -> frozenset[bytes]:
    return frozenset(words.encode().split())


_TRANSLATE = _set(
    "translate translation übersetze übersetz traduce traducir traduis traduire traduci traduza переведи"
)
_SUMMARIZE = _set(
    "summarize summarise summary summaries tldr zusammenfassung résume resume riassumi condense"
)
_MAKE = _set(
    "write implement create code fix debug refactor complete build make convert optimize add explain center"
)
_PROGRAM = _set(
    "python javascript typescript java rust golang ruby php perl kotlin swift sql bash html css regex"
    " function program script class method algorithm code query api unittest dataframe react docker git pandas"
)
_MATH = _set(
    "calculate compute simplify integral derivative equation polynomial factorial probability triangle sum modulo"
    " remainder divisible integer integers prime perimeter evaluate solve"
)
_ADVANCED = _set("derivative integral polynomial probability factorial determinant logarithm")
_PIECE = _set(
    "poem story haiku song lyrics limerick sonnet tale novel fable joke slogan blog screenplay verse ballad essay"
)
_COMPOSE = _set("write compose create craft invent imagine tell make draft generate")
_GREET = _set("hi hello hey thanks thank hallo hola bonjour ciao bye goodbye yo")
_CODE = _phrases(
    "```",
    "c++",
    "c#",
    "\ndef ",
    "\nclass ",
    "\nimport ",
    "#include",
    "public static",
    "select * from",
    "traceback (most",
    "error:",
)
_COUNT = _phrases("how many", "how much", "how long", "how far", "how fast", "the total")
_SIGNS = _phrases("+", "*", "/", "=", "^", "×")
_FORMULA = _phrases("\\frac", "\\sqrt", "$x", "\\[")
_ASK_TO_TRANSLATE = _phrases("translate this", "translate the", "翻译")
_ASK_TO_SAY = _phrases("how do you say", "how do i say", "how would you say")
_ASK_TO_SUM_UP = _phrases(
    "tl;dr", "main points", "key points", "key takeaways", "sum up", "in a few sentences"
)


def _code(words: Words) -> bool:
    asked = words.begins(_MAKE, _PROGRAM)
    return asked or words.says(_CODE) or words.text.startswith((b"def ", b"import ", b"from typing"))


def _math(words: Words) -> bool:
    counted = words.numbers >= 2 and words.says(_COUNT)
    sums = words.numbers >= 2 and words.says(_SIGNS) and len(words.tokens) < 40
    named = words.begins(_ADVANCED) or (words.numbers >= 1 and words.begins(_MATH))
    return counted or sums or named or words.says(_FORMULA)


def _translation(words: Words) -> bool:
    asked = words.begins(_TRANSLATE) or words.says(_ASK_TO_TRANSLATE)
    return asked or (words.first == b"how" and words.says(_ASK_TO_SAY))


def _summarization(words: Words) -> bool:
    asked = words.says(_ASK_TO_SUM_UP)
    return asked or words.begins(_SUMMARIZE) or words.ends(_SUMMARIZE)


def _creative(words: Words) -> bool:
    return words.begins(_COMPOSE, _PIECE)


def _chat(words: Words) -> bool:
    return len(words.tokens) <= _BEGINNING and words.first in _GREET


RULES: dict[str, Callable[[Words], bool]] = {
    "code": _code,
    "math": _math,
    "translation": _translation,
    "summarization": _summarization,
    "creative": _creative,
    "chat": _chat,
}
