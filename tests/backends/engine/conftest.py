"""An engine on a runner without a model, whose answers depend on every token that it can read through the blocks."""

import hashlib
import itertools
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from backends.engine.batch import Batch, Pick, Row, Words
from backends.engine.cache import BlockCache
from backends.engine.compiling import Compile
from backends.engine.engine import Engine
from backends.engine.grammar import Constraint, GrammarCompiler
from backends.engine.sequence import Sequence
from backends.engine.speculation.drafter import Drafter, Reading, Wish
from backends.wire import (
    DraftMethod,
    EngineConfig,
    FinishReason,
    Grammar,
    Output,
    Refused,
    Sampling,
    Signal,
    Speculation,
    Submit,
    Vocabulary,
)

VOCABULARY = [b"", b"a", b"b", b"ab", b"ba", b"aab", b"c", "ď".encode()]
VOCABULARY += [bytes([id]) for id in range(len(VOCABULARY), 60)]
VOCAB_SIZE = 64  # padded
EOS = 0
UNWRITTEN = -1
COMPILER = GrammarCompiler(Vocabulary(VOCABULARY, {EOS: "<end>"}), frozenset({EOS}), VOCAB_SIZE)


def next_token(ids: Iterable[int], seed: int = 0) -> int:
    """What the "model" says after `ids`. A token is as likely as any other, so one of 60 ends the answer."""
    digest = hashlib.blake2b(repr((seed, list(ids))).encode(), digest_size=4).digest()
    return int.from_bytes(digest) % len(VOCABULARY)


def among(token: int, allowed: Words) -> int:
    """What it says where it may not say everything."""
    ids = np.flatnonzero(np.unpackbits(allowed.view(np.uint8), bitorder="little"))
    return int(ids[token % len(ids)])


@dataclass
class FakeRunner:
    """Keeps the token of every position where a model keeps its keys and values, and answers from those alone.

    As on a device, steps run in the order in which they are launched, whenever they are collected.
    """

    kv: list[list[int]]
    batches: list[Batch] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)  # raised one by one, in the next steps
    answers: list[list[list[int]]] = field(default_factory=list)  # given instead of the right ones
    seconds: float = 0.0  # that a device would have worked
    followed: int = 0  # steps launched before the last one was collected
    sampled: dict[int, list[list[int]]] = field(default_factory=dict)  # by its id, until it is collected

    def launch(self, batch: Batch) -> Batch:
        assert batch.rows
        self.batches.append(batch)
        self.seconds += 0.01 + 0.002 * sum(len(row.tokens) for row in batch.rows)
        for row in batch.rows:
            self._write(row)
        if self.failures:
            raise self.failures.pop(0)
        self.sampled[id(batch)] = self._said(batch)
        return batch

    def follow(self, batch: Batch, follows: list[int], pending: Batch) -> Batch:
        said = self.sampled[id(pending)]
        rows = [replace(row, tokens=said[place]) for row, place in zip(batch.rows, follows, strict=True)]
        self.followed += 1
        return self.launch(Batch(rows))

    def collect(self, pending: Batch) -> list[list[int]]:
        said = self.sampled.pop(id(pending))
        return self.answers.pop(0) if self.answers else said

    def _said(self, pending: Batch) -> list[list[int]]:
        said: list[list[int]] = [[] for _ in pending.rows]
        for pick in pending.picks:
            said[pick.row].append(self._sample(pending.rows[pick.row], pick))
        return said

    def scores(self, pending: Batch) -> list[list[Any]]:
        raise NotImplementedError("no test here asks for scores")

    def signals(self, pending: Batch) -> list[list[Signal]]:
        """The first value tells after how many tokens the row has sampled."""
        told: list[list[Signal]] = [[] for _ in pending.rows]
        for pick in pending.picks:
            row = pending.rows[pick.row]
            if row.watched:
                length = float(row.start + pick.after + 1)
                told[pick.row].append(Signal(length, 1.0, 2.0, pick.choice.forced))
        return told

    def _write(self, row: Row) -> None:
        assert row.tokens, "a row without tokens"
        size = len(self.kv[0])
        for position, token in enumerate(row.tokens, row.start):
            self.kv[row.blocks[position // size]][position % size] = token

    def _sample(self, row: Row, pick: Pick) -> int:
        seen = [token for block in row.blocks for token in self.kv[block]][: row.start + pick.after + 1]
        assert UNWRITTEN not in seen, "a row reads what nobody has written"
        token = next_token(seen, pick.sampling.seed)
        return token if pick.choice.allowed is None else among(token, pick.choice.allowed)


@dataclass
class FakeDrafter:
    """Drafts what the "model" will say, and is wrong at the tokens of a draft that `wrong` names."""

    wrong: frozenset[int] = frozenset()
    error: int = 1  # by which it is wrong: far off, it is outside the vocabulary
    method: DraftMethod = "ngram"
    mute: bool = False  # it has never anything to say
    behind: int = 0  # tokens that it has to read of each sequence, 64 at a time
    device: FakeRunner | None = None  # whose time it takes …
    seconds: float = 0.0  # … for each token
    drafted: int = 0
    read: Counter[int] = field(default_factory=Counter)  # tokens, by the sequence's number

    def lag(self, sequence: Sequence, cache: BlockCache) -> int:
        return self.behind - self.read[sequence.number]

    def prepare(self, wishes: list[Wish], cache: BlockCache, *, idle: bool) -> Reading | None:
        for sequence, _ in wishes:
            if lag := self.lag(sequence, cache):
                self.read[sequence.number] += min(lag, 64)
                return sequence, min(lag, 64)
        return None

    def propose(self, wishes: list[Wish], cache: BlockCache) -> list[list[int]]:
        silent = [self.mute or self.lag(sequence, cache) > 0 for sequence, _ in wishes]
        return [[] if mute else self._draft(*wish) for mute, wish in zip(silent, wishes, strict=True)]

    def _draft(self, sequence: Sequence, count: int) -> list[int]:
        ids, constraint = list(sequence.ids), sequence.constraint
        constraint = constraint and constraint.copy()
        while len(ids) < len(sequence.ids) + count and not (constraint and constraint.complete):
            place = len(ids) - len(sequence.ids)
            token = next_token(ids, sequence.sampling.seed)
            if constraint is not None:
                token = among(token, constraint.allowed(frozenset(), ending=False))
                constraint.accept(token)
            ids.append(token + self.error if place in self.wrong else token)
        self.drafted += count
        if self.device is not None:
            self.device.seconds += count * self.seconds
        return ids[len(sequence.ids) :]

    def forget(self, sequence: Sequence) -> None:
        pass


@dataclass
class Answer:
    """All that an engine has told of one generation."""

    ids: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    trim: int = 0
    signals: list[Signal] = field(default_factory=list)
    cached: int = 0
    last: Output | None = None

    @property
    def text(self) -> bytes:
        text = b"".join(VOCABULARY[id] for id in self.ids)
        return text[: len(text) - self.trim]


class Rig:
    """An engine, its runner and a clock that stands still. Everything is checked after every step."""

    def __init__(
        self,
        compile: Compile | None = None,
        *,
        paced: bool = False,
        overlap: bool = False,
        drafters: tuple[Drafter, ...] = (),
        **config: Any,
    ) -> None:
        """`paced`: the engine sees that steps take time, and learns how much. `overlap`: the device works by itself.
        `drafters` are asked in every step."""
        fields = {
            "block_size": 4,
            "kv_blocks": 64,
            "token_budget": 32,
            "max_sequences": 8,
            "speculation": Speculation(gated=False),
            **config,
        }
        self.config = EngineConfig(name="e/0", model="", socket="", vocabulary="", **fields)
        self.runner = FakeRunner([[UNWRITTEN] * self.config.block_size for _ in range(self.config.kv_blocks)])
        self.now = 1000.0
        self.engine = Engine(
            self.config,
            self.runner,
            VOCABULARY,
            frozenset({EOS}),
            VOCAB_SIZE,
            1024,
            lambda: self.now,
            lambda: self.runner.seconds if paced else 0.0,
            compile=compile or COMPILER.compile,
            drafters=drafters,
            follow=self.runner.follow if overlap else None,
        )
        self.refused: dict[tuple[bytes, str], Refused] = {}
        self.answers: dict[tuple[bytes, str], Answer] = {}
        self._names = itertools.count()

    def submit(
        self,
        prompt: list[int],
        max_tokens: int = 8,
        *,
        id: str | None = None,
        sender: bytes = b"gw",
        **options: Any,
    ) -> Answer:
        """Raises AssertionError when it is refused. The answer fills with every step; EOS is ignored by default.

        With `n`, that is the first answer; the others are `answers[sender, f"{id}#{index}"]`.

        `options`: fields of Submit and of Sampling.
        """
        fields = {name: options.pop(name) for name in Submit.__struct_fields__ if name in options}
        id = f"g{next(self._names)}" if id is None else id
        submit = Submit(
            id=id,
            prompt=prompt,
            sampling=Sampling(max_tokens=max_tokens, **{"ignore_eos": True, **options}),
            **fields,
        )
        refused = self.engine.submit(sender, submit)
        assert refused is None, refused
        for index in range(1, submit.sampling.n):
            self.answers[sender, f"{id}#{index}"] = Answer()
        return self.answers.setdefault((sender, id), Answer())

    def refusal(self, submit: Submit) -> Refused:
        refused = self.engine.submit(b"gw", submit)
        assert refused is not None
        self.engine.check()
        return refused

    def step(self) -> None:
        for sender, output in self.engine.step():
            answer = self.answers[sender, f"{output.id}#{output.index}" if output.index else output.id]
            assert answer.finish is None, "told after its end"
            answer.ids += output.ids
            answer.signals += output.signals
            answer.finish, answer.trim = output.finish, output.trim
            answer.cached, answer.last = output.cached, output
        self.refused.update(((sender, refused.id), refused) for sender, refused in self.engine.refusals())
        self.engine.check()

    def run(self, limit: int = 10_000) -> None:
        """Step until nothing is left to do."""
        for _ in range(limit):
            if not self.engine.has_work:
                return self.idle()
            self.step()
        raise AssertionError(f"not done after {limit} steps")

    def ask(self, prompt: list[int], max_tokens: int = 8, **options: Any) -> Answer:
        answer = self.submit(prompt, max_tokens, **options)
        self.run()
        return answer

    def idle(self) -> None:
        load = self.engine.load()
        assert load.running == load.waiting == 0
        assert load.blocks_free + load.blocks_cached == load.blocks_total


@pytest.fixture
def rig() -> Callable[..., Rig]:
    """Engines by their config: `rig(kv_blocks=8)`."""
    return Rig


@pytest.fixture
def fake_runner() -> Callable[..., FakeRunner]:
    """Runners by their blocks and the size of these."""
    return lambda blocks, size: FakeRunner([[UNWRITTEN] * size for _ in range(blocks)])


@pytest.fixture
def drafter() -> Callable[..., FakeDrafter]:
    """Drafters by where they are wrong: `drafter({0, 2})`."""

    def make(wrong: Iterable[int] = (), **fields: Any) -> FakeDrafter:
        return FakeDrafter(frozenset(wrong), **fields)

    return make


@pytest.fixture
def expected() -> Callable[..., Answer]:
    """The right answer, found without an engine: `expected(prompt, max_tokens)`. EOS is ignored by default."""
    return compute


def compute(
    prompt: list[int],
    max_tokens: int = 8,
    *,
    seed: int = 0,
    ignore_eos: bool = True,
    stop: tuple[str, ...] = (),
    stop_token_ids: tuple[int, ...] = (),
    grammar: Grammar | None = None,
) -> Answer:
    answer = Answer()
    constraint = None if grammar is None else COMPILER.compile(grammar)
    while answer.finish is None:
        token = next_token(prompt + answer.ids, seed)
        if constraint is not None:
            token = among(token, constraint.allowed(frozenset(), ending=not ignore_eos))
        answer.ids.append(token)
        if token in stop_token_ids or (token == EOS and not ignore_eos):
            answer.finish, answer.trim = "stop", len(VOCABULARY[token])
        elif (trim := trimmed(answer.text, stop)) is not None:
            answer.finish, answer.trim = "stop", trim
        elif constraint is not None and ended(constraint, token):
            answer.finish = "stop"
        elif len(answer.ids) == max_tokens:
            answer.finish = "length"
    return answer


def ended(constraint: Constraint, token: int) -> bool:
    constraint.accept(token)
    return constraint.complete


def trimmed(text: bytes, stops: tuple[str, ...]) -> int | None:
    """How much of `text` is too much: from the start of the match that ends first, the longest of those."""
    needles = [stop.encode() for stop in stops]
    ends = [(text.find(needle) + len(needle), -len(needle)) for needle in needles if needle in text]
    return None if not ends else len(text) - sum(min(ends))


@pytest.fixture
def sequence() -> Callable[..., Sequence]:
    """Sequences out of nothing: `sequence([1, 2, 3], number=4)`."""

    def make(ids: list[int], **fields: Any) -> Sequence:
        defaults = {
            "sender": b"gw",
            "id": "g",
            "prompt_length": len(ids),
            "sampling": Sampling(max_tokens=8),
            "ends": frozenset({EOS}),
            "max_length": len(ids) + 8,
            "number": 0,
            "arrived": 0.0,
        }
        return Sequence(ids=array("I", ids), **{**defaults, **fields})

    return make
