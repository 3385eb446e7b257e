"""Answers weighed against what dearer tiers are expected to make of the prompt."""

import pytest

from gateway.reasons import reason
from tests.gateway.story.judged import Rig


async def test_what_is_hopeless_everywhere_stays(rig: Rig) -> None:
    """Nobody pays for an escalation that is expected to gain nothing."""
    rig.scripts["7b"] = rig.confident.answer(*[rig.confident.UNSURE] * 50)
    attempt = await rig.run(
        prospects=[rig.confident.prospect("m", 0.13), rig.confident.prospect("unknown", 0.14)]
    )
    assert attempt.tier.name == "7b" and rig.opened() == [1, 0, 0] and attempt.verdicts[0].kept
    assert reason(rig.route, attempt) == (
        "7b: because; its answer p=0.12 < 0.50 after 32 tokens, 70b expected 0.14, hardly better"
    )
    await attempt.rest.aclose()


async def test_who_is_expected_to_do_no_better_is_passed_over(rig: Rig) -> None:
    rig.scripts["7b"] = rig.confident.answer(*[rig.confident.UNSURE] * 50)
    attempt = await rig.run(
        prospects=[rig.confident.prospect("m", 0.13), rig.confident.prospect("unknown", 0.8)]
    )
    assert attempt.tier.name == "70b" and rig.opened() == [1, 0, 1] and rig.idle() is False
    assert reason(rig.route, attempt) == (
        "70b: escalated from 7b (p=0.12 < 0.50 after 32 tokens, 70b expected 0.80) (7b: because)"
    )
    assert rig.value("headrace_escalations_total", from_tier="7b", to_tier="70b") == 1
    await attempt.rest.aclose()


@pytest.mark.parametrize(("weight", "tier"), [(10.0, "70b"), (40.0, "13b"), (400.0, "7b")])
async def test_with_a_goal_worth_decides(rig: Rig, weight: float, tier: str) -> None:
    """A thousand tokens of prompt cost .003 on 13b and .010 on 70b, which is expected to be right .2 more often."""
    rig.scripts["7b"] = rig.confident.answer(*[rig.confident.UNSURE] * 50)
    rig.scripts["13b"] = rig.confident.answer(*[rig.confident.SURE] * 50)
    attempt = await rig.run(
        weight=weight, prospects=[rig.confident.prospect("m", 0.6), rig.confident.prospect("unknown", 0.8)]
    )
    assert attempt.tier.name == tier
    if tier == "7b":
        assert "p=0.12 after 32 tokens, 13b expected 0.60, not worth its cost" in reason(rig.route, attempt)
    await attempt.rest.aclose()


async def test_a_threshold_that_was_set_stands_above_worth(rig: Rig) -> None:
    rig.scripts["7b"] = rig.confident.answer(*[rig.confident.UNSURE] * 50)
    attempt = await rig.run(weight=400.0, threshold=0.4, prospects=[rig.confident.prospect("m", 0.6)])
    assert attempt.tier.name == "13b" and "p=0.12 < 0.40 after 32 tokens" in reason(rig.route, attempt)
    await attempt.rest.aclose()
