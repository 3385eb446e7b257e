"""Grammars, by llguidance: which tokens an answer may go on with, so that it becomes a sentence of its grammar.

Only what the grammar forbids is masked. The library can also force the tokens that a tokenizer would make of bytes
without alternative; that is off, since an engine has no tokenizer, and since the model's own choice among what may
come is a law that can be tested. What a grammar may cost is bounded by LIMITS, for its compilation and for each step.
They leave room for the many optional properties of an honest schema, which cost little. But one with many readings of
what has been said costs more with every token, within the same limits; so time counts too, see OVERDRAFT.
"""

import copy
import json
import re
import time
from collections.abc import Iterable

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from backends.engine.batch import Words
from backends.schemas import without_remarks
from backends.wire import WHITESPACE, Grammar, Vocabulary

CONTROL = b"\xff"  # what llguidance marks tokens with that are no text; no text in UTF-8 has it
OPTIONS = '%llguidance {"no_forcing": true}'
# A million units of "initial fuel" are 20 ms, 100,000 of "step fuel" 7 ms; a state takes up to 2 KB.
LIMITS = LLParserLimits(
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=100_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
ALLOWANCE = 0.01  # seconds of processor time that each token of an answer has; most take a fraction of one millisecond
OVERDRAFT = 0.5  # seconds that an answer may take beyond it: every other answer waits for them
# Seconds that one token counts at most. A virtual machine that stands still is billed as if it had worked, so that no
# single token says anything about a grammar.
COUNTED = 0.1
TOO_SLOW = "it takes too much time to follow"
MAX_REASON = 200  # characters of the library's words that are passed on
_TEMPERATURE = re.compile(r"^\s*[?!]?\w+\[[^\]\n]*\btemperature\s*=", re.MULTILINE)  # of one rule, in Lark
_DETAIL = re.compile(r"^error: (.+)$", re.MULTILINE)  # what the parser of regular expressions ends with


class GrammarError(Exception):
    """What is wrong with a grammar, for whoever wrote it."""


class Constraint:
    """Where one answer stands in its grammar."""

    def __init__(self, matcher: LLMatcher, eos: frozenset[int]) -> None:
        """`eos`: the tokens that end an answer. Raises GrammarError where no answer can begin."""
        self._matcher = matcher
        self._eos = eos
        self._overdrawn = 0.0
        self._look()

    @property
    def complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return not self._more.any()

    def accept(self, token: int) -> None:
        """Go on by an allowed token that does not end the answer.

        Raises GrammarError beyond a limit of LIMITS, or where the answer has taken too much time.
        """
        began = time.thread_time()
        self._matcher.consume_token(token)
        self._look()
        took = min(time.thread_time() - began, COUNTED)
        self._overdrawn = max(0.0, self._overdrawn + took - ALLOWANCE)
        if self._overdrawn > OVERDRAFT:
            raise GrammarError(TOO_SLOW)

    def permits(self, token: int) -> bool:
        """Whether a token that does not end the answer may follow. Any number is a token that may not."""
        word = token >> 5
        return 0 <= word < len(self._more) and bool(int(self._more[word]) >> (token & 31) & 1)

    def allowed(self, banned: frozenset[int], *, ending: bool) -> Words:
        """The tokens that may follow, a bit each, the lowest bit of the first word for token 0.

        `ending`: may it be one of the end tokens, where the grammar is satisfied? `banned` ones are left out, but
        where nothing else may follow, the grammar has the last word. Only while it is not `complete`.
        """
        words = self._all if ending else self._more
        fewer = _without(words, banned)
        return fewer if fewer.any() else words

    def copy(self) -> "Constraint":
        """The same place in the grammar, for another answer."""
        other = copy.copy(self)
        other._matcher = self._matcher.deep_copy()
        return other

    def _look(self) -> None:
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise GrammarError(_reason(self._matcher))
        self._all = np.frombuffer(mask, np.uint32)
        self._more = _without(self._all, self._eos)


class GrammarCompiler:
    """Makes constraints for one vocabulary. `compile` may run in any thread, and lets the others run."""

    def __init__(self, vocabulary: Vocabulary, eos: frozenset[int], vocab_size: int) -> None:
        """`vocab_size`: how many ids the model has; those beyond the vocabulary are never allowed."""
        # The library wants an end token; one that no model can say stands for those of a model without.
        self._eos = frozenset(id for id in eos if id < vocab_size) or frozenset({vocab_size})
        self._tokenizer = LLTokenizer(_Tokens(vocabulary, vocab_size), eos_token=sorted(self._eos))  # type: ignore[arg-type]  # it asks for the members only

    def compile(self, grammar: Grammar) -> Constraint:
        """Raises GrammarError for one that makes no sense, costs too much, or has no sentence but the empty one."""
        matcher = LLMatcher(self._tokenizer, _source(grammar), log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise GrammarError(_reason(matcher))
        constraint = Constraint(matcher, self._eos)
        if constraint.complete:
            raise GrammarError("no answer of at least one token satisfies it")
        return constraint


class _Tokens:
    """A vocabulary as `LLTokenizer` asks for it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self.tokens = vocabulary.data + [b""] * (vocab_size + 1 - len(vocabulary.data))
        for id, name in vocabulary.names.items():
            self.tokens[id] = CONTROL + name.encode()
        self.special_token_ids = list(vocabulary.names)
        self.eos_token_id = vocab_size  # the compiler names the real ones

    def __call__(self, text: bytes) -> list[int]:
        """Only forced tokens would be asked for."""
        raise NotImplementedError


def _source(grammar: Grammar) -> str:
    """What llguidance compiles. Raises GrammarError."""
    if grammar.kind == "lark":
        if _TEMPERATURE.search(grammar.source):
            raise GrammarError("a rule has a temperature: only that of the request is followed")
        return f"{grammar.source}\n{OPTIONS}"  # in this order, so that the numbers of lines are right
    if grammar.kind == "regex":
        inner = json.loads(LLMatcher.grammar_from_regex(grammar.source))["grammars"][0]
    else:
        inner = {"json_schema": _schema(grammar.source)}
    return json.dumps(
        {"grammars": [{"lark_grammar": f"start: @answer\n{OPTIONS}"}, {**inner, "name": "answer"}]}
    )


def _schema(source: str) -> object:
    """With our whitespace, unless the schema has its own. Raises GrammarError."""
    try:
        schema = without_remarks(json.loads(source))
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is no JSON: {error}"[:MAX_REASON]) from None
    if isinstance(schema, dict) and "x-guidance" not in schema:
        return {**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}}
    return schema


def _reason(matcher: LLMatcher) -> str:
    """The library's words, without the grammar that it quotes and without what it knows of the tokenizer."""
    words = matcher.get_error()
    if words.startswith("NoExtension"):
        return "nothing satisfies it"
    detail = _DETAIL.search(words)
    line = words.partition("\n")[0].partition("; following special tokens")[0]
    return (f"regular expression: {detail[1]}" if detail else line)[:MAX_REASON]


def _without(words: Words, tokens: Iterable[int]) -> Words:
    """A copy with the bits of `tokens` cleared."""
    kept = words.copy()
    for token in tokens:
        kept[token >> 5] &= ~np.uint32(1 << (token & 31))
    return kept
