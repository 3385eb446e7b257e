"""One prompt and its growing answer, inside the engine."""

from array import array
from collections import Counter
from dataclasses import dataclass, field

from backends.engine.batch import FREE, Choice, Row, Seen
from backends.engine.draft import Draft
from backends.engine.grammar import Constraint
from backends.engine.outcome import Outcome
from backends.engine.stops import StopMatcher
from backends.wire import FinishReason, Output, Sampling, Score, Signal, StepRun, Timings
from prefixcache.tree import RadixNode

SCORED_CHUNK = 128  # tokens of a scored prompt in one step: each takes a whole row of logits

Level = tuple[bool, int]  # of urgency: whether nobody waits for the words, then priority; smaller goes first

STRETCHED = b"/stretched"  # ends the salts of sequences beyond their border


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """The first `computed` of `ids` have their keys and values in `blocks`; the rest is still to be run.

    The leading `shared` blocks belong to the prefix tree, which keeps them as long as `node` is locked, and are
    never written; the others are this sequence's own.
    """

    sender: bytes
    id: str
    ids: "array[int]"  # prompt, then answer; as array("I"), which the tree reads without unpacking it
    prompt_length: int
    sampling: Sampling
    ends: frozenset[int]  # tokens that complete the answer
    max_length: int  # of prompt and answer together
    number: int  # counts up with arrival
    arrived: float  # Unix seconds, like all times here
    salt: bytes = b""
    task: str = ""
    tenant: str = ""
    session: str = ""
    weight: float = 1.0  # of the tenant
    batch: bool = False  # nobody waits for the words
    priority: int = 0
    deadline: float | None = None
    stops: StopMatcher | None = None
    seen: Seen | None = None  # where there are penalties
    constraint: Constraint | None = None  # where there is a grammar, once it is compiled
    border: int | None = (
        None  # with more tokens than these it is rotated in another way, from its first token on
    )
    stretched: bool = False  # it is rotated so
    index: int = 0  # among the answers to its prompt
    # Its other answers, until the prompt is computed.
    followers: "list[Sequence]" = field(default_factory=list)

    draft: Draft = field(default_factory=Draft)  # of what follows `ids`

    running: bool = False  # or waiting
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    shared: int = 0
    node: RadixNode | None = None

    scheduled: float | None = None  # when it was first admitted
    band: int = 0  # in force then, see `bands`
    cached: int = 0  # prompt tokens found in the cache then
    first_token: float | None = None
    last_token: float | None = None
    held: list[int] = field(default_factory=list)  # sampled, not yet told: may begin a stop string
    trim: int = 0  # bytes at the end of the answer that are of a matched stop
    scores: list[Score] = field(default_factory=list)  # of `held`, where they are asked for
    signals: list[Signal] = field(default_factory=list)  # likewise
    prompt_scores: list[Score] = field(default_factory=list)  # of the prompt's second token, third, …
    prompt_told: bool = False
    steps: list[StepRun] | None = None  # where they are asked for

    @property
    def level(self) -> Level:
        return self.batch, self.priority

    @property
    def rank(self) -> tuple[Level, int]:
        """Smaller goes first: by urgency, then by arrival."""
        return self.level, self.number

    @property
    def whole_session(self) -> str:
        """The session's tag with that of its tenant, who may use the same as others; empty without one."""
        return f"{self.tenant}/{self.session}" if self.session else ""

    @property
    def in_prompt(self) -> bool:
        """Whether more than one token is to be run until the next can be sampled."""
        return self.remaining > 1

    @property
    def remaining(self) -> int:
        """Tokens to be run until the next one can be sampled; 1 while decoding, 0 only when all is done."""
        return len(self.ids) - self.computed

    @property
    def runnable(self) -> int:
        """How many of the remaining tokens one step may run at most."""
        return min(self.remaining, SCORED_CHUNK) if self.unscored else self.remaining

    @property
    def unscored(self) -> bool:
        """Whether scores of the prompt are wanted and not complete."""
        return self.sampling.prompt_logprobs and len(self.prompt_scores) < self.prompt_length - 1

    @property
    def reusable(self) -> "array[int]":
        """The tokens whose keys and values may come from the cache. What is scored, or sampled from, has to be run."""
        return self.ids[:0] if self.unscored else self.ids[:-1]

    @property
    def outgrown(self) -> bool:
        """Whether what is computed is of no use for the next token: the sequence has grown beyond its border."""
        return self.border is not None and not self.stretched and len(self.ids) > self.border

    def stretch(self) -> None:
        """Be rotated in the other way from now on, and share blocks only with sequences that are. Without blocks."""
        assert not self.blocks, "they hold keys that are rotated in the first way"
        self.stretched = True
        self.salt += STRETCHED

    @property
    def draftable(self) -> int:
        """How many tokens a draft of what follows can have to any use: each is sampled, and one more after them."""
        if self.remaining != 1 or len(self.ids) == self.prompt_length or self.unscored:
            return 0
        room = self.max_length - len(self.ids) - 1
        return room if self.border is None or self.stretched else min(room, self.border - len(self.ids))

    def expect(self, tokens: list[int]) -> None:
        """Take `tokens` for what follows: whoever drafts them may be wrong."""
        self.draft = Draft(tokens[: self.draftable], self.ends, self.constraint)

    def row(self, count: int) -> Row:
        """The next `count` tokens, with a sample wanted if they are all there are and the answer may have one.

        Where `count` is more than there are, the others are those of the draft, and each is to be verified.
        """
        start, end = self.computed, self.computed + count
        drafted = max(0, end - len(self.ids))
        sampled = end >= len(self.ids) < self.max_length
        targets = self.ids[start + 1 : min(end + 1, self.prompt_length)].tolist() if self.unscored else []
        return Row(
            self.ids[start:end].tolist() + self.draft.tokens[:drafted],
            start,
            list(self.blocks),
            self.sampling if sampled else None,
            choices=[self.choice(ahead) for ahead in range(drafted + 1)] if sampled else [FREE],
            stretched=self.stretched,
            targets=targets,
            top=self.sampling.logprobs if sampled or targets else None,
            watched=sampled and self.sampling.signals,
        )

    @property
    def ends_next(self) -> bool:
        """Whether the token that is being sampled is the last one there is room for."""
        return len(self.ids) + 1 >= self.max_length

    def foreseeable(self, count: int) -> bool:
        """Whether its row after the one of `count` tokens can be made ready before what that samples is known."""
        within = self.border is None or self.stretched or len(self.ids) < self.border
        free = self.seen is None and self.constraint is None
        return within and free and count == self.remaining and not self.unscored

    def row_ahead(self) -> Row:
        """Its row after the one that samples its next token, which stands there as 0."""
        banned = self.ends if self._generated + 1 < self.sampling.min_tokens else frozenset()
        return Row(
            [0],
            len(self.ids),
            list(self.blocks),
            self.sampling,
            choices=[Choice(None, banned)],
            stretched=self.stretched,
            top=self.sampling.logprobs,
            watched=self.sampling.signals,
        )

    def choice(self, ahead: int) -> Choice:
        """Of the token after `ahead` ones of the draft."""
        banned = self.ends if self._generated + ahead < self.sampling.min_tokens else frozenset()
        seen = None if self.seen is None else self.seen.and_then(self.draft.tokens[:ahead])
        constraint = self.draft.constraints[ahead - 1] if ahead and self.constraint else self.constraint
        if constraint is None:
            return Choice(seen, banned)
        return Choice(seen, allowed=constraint.allowed(banned, ending=not self.sampling.ignore_eos))

    @property
    def _generated(self) -> int:
        return len(self.ids) - self.prompt_length

    def measure(self, outcome: Outcome) -> None:
        """Take in what is reported with the tokens of an outcome, before these are accepted and `computed` counts them.

        The scores of the prompt are those from the first token of the row on. A row that ran before, ahead of a
        preemption, brings the same again.
        """
        self.scores += outcome.scores
        self.signals += outcome.signals
        self.prompt_scores[self.computed : self.computed + len(outcome.targets)] = outcome.targets

    def accept(self, token: int, text: bytes) -> FinishReason | None:
        """Append a sampled token, whose bytes are `text`. Returns why the answer is complete now, None if it is not.

        A stop goes before the limit on length, a stop token before stop strings, and these before the end of the
        grammar. A stop token counts as generated and is told like any other, but its bytes are trimmed from the text.
        Raises GrammarError where going on in the grammar costs too much.
        """
        foreseen = self.draft.follow(token)
        self.ids.append(token)
        self.held.append(token)
        if self.seen is not None:
            self.seen.output[token] += 1
        if token in self.ends:
            self.trim = len(text)
            return "stop"
        trim = self._stop(text)
        if trim is not None:
            self.trim = trim
            return "stop"
        if self.constraint is not None:
            if foreseen is None:
                self.constraint.accept(token)
            else:
                self.constraint = foreseen
            if self.constraint.complete:
                return "stop"
        return "length" if len(self.ids) >= self.max_length else None

    def _stop(self, text: bytes) -> int | None:
        """See StopMatcher.push. Stop strings are not looked for in what comes before `min_tokens`."""
        if self.stops is None or self._generated < self.sampling.min_tokens:
            return None
        return self.stops.push(text)

    def tell(self, vocabulary: list[bytes]) -> list[int]:
        """The ids not told yet that cannot be part of a stop string any more."""
        hold = 0 if self.stops is None else self.stops.held
        keep = len(self.held)
        while hold > 0:
            keep -= 1
            hold -= len(vocabulary[self.held[keep]])
        told, self.held = self.held[:keep], self.held[keep:]
        return told

    def tell_all(self) -> list[int]:
        """The ids not told yet, at the end of the answer."""
        told, self.held = self.held, []
        return told

    def output(self, ids: list[int]) -> Output:
        """What there is to tell of `ids`, which have just been told off, and of the prompt."""
        count = len(ids)
        scores, self.scores = self.scores[:count], self.scores[count:]
        signals, self.signals = self.signals[:count], self.signals[count:]
        return Output(
            id=self.id,
            index=self.index,
            ids=ids,
            scores=scores,
            signals=signals,
            prompt=self._tell_prompt(),
            cached=self.cached,
        )

    @property
    def prompt_due(self) -> bool:
        """Whether the prompt's scores are complete and not told."""
        return bool(self.prompt_scores) and not (self.prompt_told or self.unscored)

    def _tell_prompt(self) -> list[Score]:
        """The prompt's, once, when they are complete."""
        if not self.prompt_due:
            return []
        self.prompt_told = True
        return self.prompt_scores

    def check(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        assert self.prompt_length <= len(self.ids) <= self.max_length
        assert len(self.ids) < self.max_length or self.prompt_length == self.max_length, "it is complete"
        assert len(self.scores) == (0 if self.sampling.logprobs is None else len(self.held))
        assert len(self.signals) == (len(self.held) if self.sampling.signals else 0)
        assert len(self.prompt_scores) in (0, self.prompt_length - 1) or self.unscored
        assert self.stretched or self.border is None or self.computed <= self.border
        assert self.seen is None or self.seen.output == Counter(self.ids[self.prompt_length :])

    def timings(self, finished: float) -> Timings:
        return Timings(
            arrived=self.arrived,
            scheduled=self.scheduled,
            first_token=self.first_token,
            finished=finished,
            steps=tuple(self.steps or ()),
        )
