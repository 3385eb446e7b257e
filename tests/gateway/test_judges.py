"""Whose answers are judged, on whose terms, and what is said of the others."""

import logging
from typing import Any

import pytest

from classifier import Assessment
from gateway.config import Cascade, Policy, Price, Tenant, Tier
from gateway.judges import Brief, Judges, Weights
from gateway.routing import TierSignals
from gateway.stakes import Stakes

QA = Assessment(task="qa", good={"7b": 0.7}, seconds=0.001)
QA70 = Assessment(task="qa", good={"7b": 0.7, "70b": 0.8}, seconds=0.001)
ACME = Tenant(name="acme")


def judges(calibrations: Any, *weights: Weights, cascade: Cascade | None = None) -> Judges:
    tiers = [Tier(name="7b", cascade=cascade or Cascade())]
    return Judges(tiers, calibrations, {"7b": weights or [Weights("m", "bfloat16")]})


def test_the_brief_of_an_attempt(confident: Any) -> None:
    brief = judges(confident.calibrations("m")).brief(ACME, "7b", QA)
    assert isinstance(brief, Brief)
    assert (brief.task, brief.good, brief.after) == ("qa", 0.7, (8, 16, 32))
    assert (brief.terms.when, brief.terms.tokens, brief.terms.seconds) == ("hold", 32, 1.5)
    assert brief.stakes.threshold == 0.5 and brief.terms.speculative


def test_a_tenant_stands_above_the_tier_field_by_field(confident: Any) -> None:
    of_tier = Cascade(hold_tokens=16, threshold=0.6)
    own = Tenant(name="acme", cascade=Cascade(threshold=0.9, hold_ms=200, speculative=False))
    brief = judges(confident.calibrations("m"), cascade=of_tier).brief(own, "7b", QA)
    assert isinstance(brief, Brief)
    assert (brief.terms.tokens, brief.stakes.threshold, brief.terms.seconds) == (16, 0.9, 0.2)
    assert not brief.terms.speculative and brief.after == (8, 16)


def test_several_answers_are_judged_at_their_end(confident: Any) -> None:
    brief = judges(confident.calibrations("m")).brief(ACME, "7b", QA, n=2)
    assert isinstance(brief, Brief) and brief.terms.when == "end"


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ([Weights("m", "int8")], "calibrated for weights in bfloat16, not in int8"),
        ([Weights("other", "bfloat16")], "no calibration of this model"),
        ([Weights("m", "bfloat16"), Weights("other", "bfloat16")], "no calibration of this model"),
    ],
)
def test_what_does_not_fit_is_not_judged(confident: Any, weights: list[Weights], why: str) -> None:
    made = judges(confident.calibrations("m"), *weights)
    assert why in str(made.brief(ACME, "7b", QA))
    assert not made.may(ACME, "7b")


def test_why_an_answer_is_not_judged(confident: Any) -> None:
    made = judges(confident.calibrations("m", confident.rule(8), confident.rule(None, auc=0.5)))
    brief = made.brief(ACME, "7b", QA)
    assert isinstance(brief, Brief) and brief.after == (8,) and not brief.confidence.at_end("qa")
    math = Assessment(task="math", good={}, seconds=0.0)
    assert made.brief(ACME, "7b", math) == "no calibration for the task math"
    assert "kept" in str(made.brief(ACME, "7b", None))
    never = Tenant(name="acme", cascade=Cascade(when="never"))
    assert made.brief(never, "7b", QA) == "cascade.when is never" and not made.may(never, "7b")
    assert made.may(ACME, "7b")


def test_rules_that_cannot_tell_do_not_judge(confident: Any) -> None:
    made = judges(confident.calibrations("m", confident.rule(8, auc=0.6)))
    assert str(made.brief(ACME, "7b", QA)) == "no rule of its calibration has an AUC of 0.65"
    mixed = confident.calibrations("m", confident.rule(8, auc=0.6), confident.rule(None, auc=0.9))
    brief = judges(mixed).brief(ACME, "7b", QA)
    assert isinstance(brief, Brief) and brief.after == () and brief.confidence.at_end("qa")


def test_the_log_tells_at_the_start(confident: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.judges")
    judges(confident.calibrations("m")).announce()
    Judges.none("7b", "70b").announce()
    assert [record.getMessage() for record in caplog.records] == [
        "7b: judged by confidence",
        "7b: not judged: there is no calibration",
        "70b: not judged: there is no calibration",
    ]


def test_terms_of_a_tier_change_while_it_runs(confident: Any) -> None:
    made = judges(confident.calibrations("m"))
    made.change([Tier(name="7b", cascade=Cascade(threshold=0.8, max_attempts=2))])
    assert made.settled(ACME, "7b").threshold == 0.8 and made.attempts(ACME, "7b") == 2


SIGNALS = tuple(
    TierSignals(
        name=name, available=True, context_length=999, prompt_tokens=10, cached_tokens=0, price=Price(input=p)
    )
    for name, p in (("7b", 1.0), ("70b", 10.0))
)


def test_what_is_known_of_the_tiers_above(confident: Any) -> None:
    """By the models and weight formats that run there, which have to be those of the calibration."""
    found = confident.calibrations("m", prospects=[confident.prospect("large", 0.9)])

    def stakes(large: Weights, cascade: Cascade, weight: float | None) -> Stakes:
        tiers = [Tier(name="7b", cascade=cascade), Tier(name="70b")]
        made = Judges(tiers, found, {"7b": [Weights("m", "bfloat16")], "70b": [large]})
        brief = made.brief(ACME, "7b", QA70, 1, SIGNALS, weight)
        assert isinstance(brief, Brief)
        return brief.stakes

    known = stakes(Weights("large", "bfloat16"), Cascade(), 3.0)
    [above] = known.above
    assert (above.name, above.good) == ("70b", 0.8) and above.expected(0.1) == pytest.approx(0.9)
    assert known.price == Price(input=1.0) and known.weight == 3.0 and known.by_worth
    assert known.usual == 256
    assert not stakes(Weights("large", "int8"), Cascade(), 3.0).by_worth
    assert not stakes(Weights("large", "bfloat16"), Cascade(), None).by_worth
    own = stakes(Weights("large", "bfloat16"), Cascade(threshold=0.3), 3.0)
    assert own.threshold == 0.3 and not own.by_worth


@pytest.mark.parametrize(
    ("policy", "usual"), [(Policy(cost_share=0.5), 64), (Policy(), 64), (Policy(answer_worth=0.002), None)]
)
def test_how_long_answers_are_taken_to_be(confident: Any, policy: Policy, usual: int | None) -> None:
    """As the route has counted them, but for a weight in money."""
    tenant = Tenant(name="acme", policy=policy)
    brief = judges(confident.calibrations("m")).brief(tenant, "7b", QA, 1, (), 3.0, 64)
    assert isinstance(brief, Brief) and brief.stakes.usual == usual
