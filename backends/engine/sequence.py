"""One prompt and its growing answer, inside the engine."""

from dataclasses import dataclass, field

from backends.engine.batch import Row
from backends.engine.stops import StopMatcher
from backends.wire import FinishReason, Sampling, Timings
from prefixcache.tree import RadixNode


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """The first `computed` of `ids` have their keys and values in `blocks`; the rest is still to be run.

    The leading `shared` blocks belong to the prefix tree, which keeps them as long as `node` is locked, and are
    never written; the others are this sequence's own.
    """

    sender: bytes
    id: str
    ids: list[int]  # prompt, then answer
    prompt_length: int
    sampling: Sampling
    ends: frozenset[int]  # tokens that complete the answer
    max_length: int  # of prompt and answer together
    number: int  # counts up with arrival
    arrived: float  # Unix seconds, like all times here
    salt: bytes = b""
    priority: int = 0
    deadline: float | None = None
    stops: StopMatcher | None = None

    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    shared: int = 0
    node: RadixNode | None = None

    scheduled: float | None = None  # when it was first admitted
    cached: int = 0  # prompt tokens found in the cache then
    first_token: float | None = None
    held: list[int] = field(default_factory=list)  # sampled, not yet told: may begin a stop string
    trim: int = 0  # bytes at the end of the answer that are of a matched stop

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller goes first: by priority, then by arrival."""
        return self.priority, self.number

    @property
    def remaining(self) -> int:
        """Tokens to be run until the next one can be sampled; 1 while decoding, never 0."""
        return len(self.ids) - self.computed

    def row(self, count: int) -> Row:
        """The next `count` tokens, with a sample wanted if they are all there are."""
        end = self.computed + count
        sampling = self.sampling if end == len(self.ids) else None
        return Row(self.ids[self.computed : end], self.computed, list(self.blocks), sampling)

    def accept(self, token: int, text: bytes) -> FinishReason | None:
        """Append a sampled token, whose bytes are `text`. Returns why the answer is complete now, None if it is not.

        A stop goes before the limit on length, a stop token before stop strings. A stop token counts as generated
        and is told like any other, but its bytes are trimmed from the text.
        """
        self.ids.append(token)
        self.held.append(token)
        if token in self.ends:
            self.trim = len(text)
            return "stop"
        trim = None if self.stops is None else self.stops.push(text)
        if trim is not None:
            self.trim = trim
            return "stop"
        return "length" if len(self.ids) >= self.max_length else None

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

    def timings(self, finished: float) -> Timings:
        return Timings(
            arrived=self.arrived,
            scheduled=self.scheduled,
            first_token=self.first_token,
            finished=finished,
        )
