"""Which answers are judged, by what rules and on which terms; and in words why the others are not."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from classifier import Assessment, Task
from classifier.calibration import Calibrations
from classifier.confidence import AFTER, WORTH_ASKING, Confidence
from classifier.prospects import Prospect
from gateway.config import Cascade, Price, Tenant, Tier
from gateway.judging import Terms
from gateway.routing import EXPECTED_ANSWER, TierSignals
from gateway.stakes import Above, Stakes

logger = logging.getLogger(__name__)

DEFAULTS = Cascade(when="hold", hold_tokens=32, hold_ms=1500.0, max_attempts=4, speculative=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """How one attempt is judged. `good`: P(good) by the prompt alone, None where it was not estimated."""

    confidence: Confidence
    task: Task
    good: float | None
    terms: Terms
    stakes: Stakes = Stakes()

    @property
    def after(self) -> tuple[int, ...]:
        """After how many tokens it is looked at before its end."""
        last = self.terms.tokens if self.terms.when == "hold" else AFTER[-1]
        return tuple(n for n in self.confidence.after(self.task) if n <= last)


@dataclass(frozen=True, slots=True)
class Weights:
    """What a replica runs: the fingerprint of a model, and the format it computes in."""

    model: str
    format: str


class Judges:
    """One for each replica that has a calibration."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        calibrations: Calibrations | None,
        replicas: Mapping[str, Sequence[Weights]],
    ) -> None:
        """`replicas`: what those of each tier run, by the tier's name."""
        self._cascades = {tier.name: tier.cascade for tier in tiers}
        self._settled: dict[tuple[Cascade, str], Cascade] = {}  # by the tenant's own, and the tier
        self._found = {
            name: _of_all([_confidence(calibrations, each) for each in weights])
            for name, weights in replicas.items()
        }
        self._prospects = {
            (one, other): _prospect(calibrations, replicas[one], replicas[other])
            for one in replicas
            for other in replicas
        }

    @classmethod
    def none(cls, *tiers: str) -> Self:
        """Who judge no answer of these tiers, as without a calibration."""
        return cls((), None, {tier: [Weights("", "")] for tier in tiers})

    def change(self, tiers: Sequence[Tier]) -> None:
        self._cascades = {tier.name: tier.cascade for tier in tiers}
        self._settled.clear()

    def announce(self) -> None:
        """In the log: which tiers are judged."""
        for name, found in self._found.items():
            logger.info(
                "%s: %s", name, f"not judged: {found}" if isinstance(found, str) else "judged by confidence"
            )

    def settled(self, tenant: Tenant, tier: str) -> Cascade:
        """With every field filled in but the threshold: the tenant's, else the tier's, else the default."""
        known = self._settled.get((tenant.cascade, tier))
        if known is None:
            known = self._settled[tenant.cascade, tier] = self._settle(tenant.cascade, tier)
        return known

    def _settle(self, own: Cascade, tier: str) -> Cascade:
        of_tier = self._cascades.get(tier, DEFAULTS)
        fields = Cascade.__struct_fields__
        return Cascade(**{
            name: next(
                (
                    value
                    for section in (own, of_tier, DEFAULTS)
                    if (value := getattr(section, name)) is not None
                ),
                None,
            )
            for name in fields
        })  # fmt: skip

    def attempts(self, tenant: Tenant, tier: str) -> int:
        """The most of a request that begins on this tier."""
        most = self.settled(tenant, tier).max_attempts
        assert most is not None
        return most

    def may(self, tenant: Tenant, tier: str) -> bool:
        """Whether some answers of this tier to the tenant's requests are judged."""
        found = self._found[tier]
        return not isinstance(found, str) and self.settled(tenant, tier).when != "never"

    def brief(
        self,
        tenant: Tenant,
        tier: str,
        assessment: Assessment | None,
        n: int = 1,
        signals: Sequence[TierSignals] = (),
        weight: float | None = None,
        usual: int = EXPECTED_ANSWER,
    ) -> Brief | str:
        """How an answer is judged, or why it is not. `n`: answers to the prompt, which are judged by the first;
        `signals`: of the tiers that the request may use, the cheapest first; `weight`: λ of its policy, if it has one;
        `usual`: tokens of an answer as its route has counted them.
        """
        found, cascade = self._found[tier], self.settled(tenant, tier)
        if cascade.when == "never":
            return "cascade.when is never"
        if isinstance(found, str):
            return found
        if assessment is None:
            return "the tier is kept: the client named it, or it is in the middle of a tool loop"
        silent = found.silent(assessment.task)
        if silent is not None:
            return silent
        return Brief(
            confidence=found,
            task=assessment.task,
            good=assessment.good.get(tier),
            terms=_terms(cascade, whole=n > 1),
            stakes=replace(
                self._stakes(tier, assessment, signals, cascade.threshold, weight),
                usual=None if tenant.policy.answer_worth is not None else usual,
            ),
        )

    def _stakes(
        self,
        tier: str,
        assessment: Assessment,
        signals: Sequence[TierSignals],
        threshold: float | None,
        weight: float | None,
    ) -> Stakes:
        """A threshold that somebody has set stands above what an answer is worth."""
        at = next((n for n, each in enumerate(signals) if each.name == tier), len(signals))
        above = [
            Above(
                signals=each,
                good=assessment.good.get(each.name),
                prospect=self._prospects.get((tier, each.name)),
            )
            for each in signals[at + 1 :]
        ]
        price = signals[at].price if above else Price()
        if threshold is not None:
            return Stakes(above=above, price=price, threshold=threshold)
        return Stakes(above=above, price=price, weight=weight)


def _terms(cascade: Cascade, *, whole: bool) -> Terms:
    assert cascade.hold_tokens and cascade.hold_ms and cascade.speculative is not None
    return Terms(
        when="end" if whole or cascade.when == "end" else "hold",
        tokens=cascade.hold_tokens,
        seconds=cascade.hold_ms / 1000,
        speculative=cascade.speculative,
    )


def _prospect(
    calibrations: Calibrations | None, own: Sequence[Weights], other: Sequence[Weights]
) -> Prospect | None:
    """Of a tier's replicas all run the same where they are calibrated."""
    if calibrations is None or len({*own}) != 1 or len({*other}) != 1:
        return None
    found = calibrations.of(own[0].model, own[0].format)
    return None if found is None else found.prospect(other[0].model, other[0].format)


def _confidence(calibrations: Calibrations | None, weights: Weights) -> Confidence | str:
    if calibrations is None:
        return "there is no calibration"
    found = calibrations.of(weights.model, weights.format)
    if found is not None:
        judging = any(rule.judges for rule in found.rules)
        return (
            Confidence(found.rules) if judging else f"no rule of its calibration has an AUC of {WORTH_ASKING}"
        )
    others = calibrations.other_weights(weights.model)
    if others:
        return f"calibrated for weights in {' and '.join(others)}, not in {weights.format}"
    return "no calibration of this model"


def _of_all(found: Sequence[Confidence | str]) -> Confidence | str:
    """Replicas of a tier answer alike, so all of them must be known; the rules are those of the first."""
    return next((each for each in found if isinstance(each, str)), found[0])
