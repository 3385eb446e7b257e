"""What is to be won by letting a dearer tier answer instead, once an answer has been seen. Pure.

Without a calibration that says what dearer tiers make of such prompts, an answer below the threshold goes to the next
one. With one, it does so only where some tier is expected to do better, since what is hopeless for all of them gains
nothing above; and where the policy has a weight λ, the same sum as in `gateway.routing` decides: P(good) - λ · cost, of
the rest of this answer against a whole one of each dearer tier. Where λ was solved for a goal, it holds for costs as
they were counted there, by answers of a usual length: one that turns out short would make dearer ones look cheap.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from backends.backend import Usage
from classifier.prospects import Prospect
from gateway.config import Price
from gateway.prices import cost
from gateway.routing import EXPECTED_ANSWER, WORTH_CLIMBING, TierSignals

USUAL = 0.5  # the threshold where neither a tenant nor a tier nor a goal has another


@dataclass(frozen=True, slots=True, kw_only=True)
class Above:
    """A dearer tier. `good`: P(good) by the prompt alone, `prospect`: once this tier's answer is seen; None where
    nobody knows."""

    signals: TierSignals
    good: float | None
    prospect: Prospect | None

    @property
    def name(self) -> str:
        return self.signals.name

    def expected(self, confidence: float) -> float | None:
        if self.good is None or self.prospect is None:
            return None
        return self.prospect.estimate(self.good, confidence)

    def price(self, tokens: int) -> float:
        """Of a whole answer of so many tokens."""
        signals = self.signals
        usage = Usage(
            prompt_tokens=signals.prompt_tokens,
            completion_tokens=tokens,
            cached_tokens=signals.cached_tokens,
        )
        return cost(signals.price, usage) * (1 + signals.load)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is known of an answer when it is judged: P(good), tokens so far, and whether these are all."""

    confidence: float
    tokens: int
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Onward:
    """Who would answer instead. `expected`: its P(good), None where that is not known; `margin`: by how much this
    answer is worth more, negative where the other tier is to answer."""

    tier: str
    expected: float | None
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stakes:
    """Of one attempt. `above`: the dearer tiers, the cheapest first; `price`: of its own tier; `weight`: λ, None where
    the threshold decides; `usual`: tokens of the answers that it was solved for, None where it is the price of a good
    answer in money, which counts what is known."""

    above: Sequence[Above] = ()
    price: Price = Price()
    threshold: float = USUAL
    weight: float | None = None
    usual: int | None = EXPECTED_ANSWER

    @property
    def by_worth(self) -> bool:
        """Whether λ decides, for which somebody must know what dearer tiers would make of it."""
        known = any(each.good is not None and each.prospect is not None for each in self.above)
        return self.weight is not None and known

    def onward(self, sight: Sight, able: Sequence[str]) -> Onward | None:
        """The best of those that are able to take over, None where nobody is."""
        above = [each for each in self.above if each.name in able]
        told = [(each, p) for each in above if (p := each.expected(sight.confidence)) is not None]
        if told and self.weight is not None:
            return self._worth(told, sight, self.weight)
        if told:
            return self._better(told, sight)
        if above:
            return Onward(tier=above[0].name, expected=None, margin=sight.confidence - self.threshold)
        return None

    def _worth(self, told: Sequence[tuple[Above, float]], sight: Sight, weight: float) -> Onward:
        """Of two that are worth the same, the cheaper."""
        length = self._length(sight)
        left = 0 if sight.ended else length - sight.tokens
        rest = cost(self.price, Usage(prompt_tokens=0, completion_tokens=left))
        each, p = max(told, key=lambda pair: pair[1] - weight * pair[0].price(length))
        worth = p - weight * each.price(length)
        return Onward(tier=each.name, expected=p, margin=sight.confidence - weight * rest - worth)

    def _length(self, sight: Sight) -> int:
        """Tokens that the answer is taken to have in the end, and another tier's likewise."""
        if self.usual is None:
            return sight.tokens if sight.ended else max(sight.tokens, EXPECTED_ANSWER)
        return max(sight.tokens, self.usual)

    def _better(self, told: Sequence[tuple[Above, float]], sight: Sight) -> Onward:
        """The cheapest that is expected to be better and to reach the threshold, else the best."""
        least = sight.confidence + WORTH_CLIMBING
        reaching = [pair for pair in told if pair[1] >= max(self.threshold, least)]
        each, p = reaching[0] if reaching else max(told, key=lambda pair: pair[1])
        return Onward(tier=each.name, expected=p, margin=max(sight.confidence - self.threshold, least - p))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found of a judged answer. `threshold`: None where worth decided; `onward`: who could have answered
    instead; `kept`: whether it was good enough."""

    tier: str
    sight: Sight
    threshold: float | None
    onward: Onward

    @property
    def kept(self) -> bool:
        return self.onward.margin >= 0

    def __str__(self) -> str:
        """As `p=0.12 < 0.50 after 32 tokens, 13b expected 0.61`."""
        p, bar, other = self.sight.confidence, self.threshold, self.onward.expected
        words = f"p={p:.2f}"
        if bar is not None:
            words += f" {'>=' if p >= bar else '<'} {bar:.2f}"
        words += f" after {self.sight.tokens} tokens"
        if other is not None and (bar is None or p < bar):
            words += f", {self.onward.tier} expected {other:.2f}"
            if self.kept:
                words += ", not worth its cost" if bar is None else ", hardly better"
        return words
