"""Confidence on made-up traces whose law is known: it finds what is there, and refuses to judge where nothing is."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.confide import FEWEST_BAD, FEWEST_GOOD, Graded, fit
from classifier.confidence import AFTER, FEATURES, Confidence, Rule, Trace, features
from classifier.measures import auc


def trace(logprobs: list[float], forced: int = 0) -> Trace:
    values = np.array(logprobs, np.float64)
    return Trace(values, -2 * values, np.abs(values), forced)


def answers(count: int, seed: int, law: float, task: str = "qa") -> list[Graded]:
    """P(good) = 1 / (1 + exp(-law · doubt)), with one doubt per answer that all its tokens show."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        doubt = random.normal()
        good = random.random() < 1 / (1 + math.exp(-law * doubt))
        tokens = random.normal(doubt - 3, 0.5, random.integers(20, 90))
        made.append(Graded(task=task, trace=trace(list(tokens)), finish="stop", prompt=0.6, good=bool(good)))  # type: ignore[arg-type]
    return made


@pytest.fixture(scope="module")
def rules() -> tuple[Rule, ...]:
    return fit(answers(600, 0, law=2.0) + answers(400, 1, law=0.0, task="creative"))


def test_it_finds_the_law(rules: tuple[Rule, ...]) -> None:
    """On answers that it has not seen, as well as the law itself allows, and with chances that come true."""
    confidence = Confidence(rules)
    assert confidence.silent("qa") is None
    unseen = answers(2000, 7, law=2.0)
    good = np.array([float(each.good) for each in unseen])
    for after in (8, 16, None):
        told = [confidence.estimate("qa", after, each.trace, each.finish, each.prompt) for each in unseen]
        estimates = np.array(told, np.float64)
        assert auc(estimates, good) > 0.83  # the law's own is 0.85
        for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 1.0)):
            inside = (estimates >= low) & (estimates < high)
            assert abs(estimates[inside].mean() - good[inside].mean()) < 0.08


def test_it_refuses_where_there_is_nothing_to_find(rules: tuple[Rule, ...]) -> None:
    confidence = Confidence(rules)
    sample = trace([-1.0] * 70)
    assert all(confidence.estimate("creative", n, sample, "stop", 0.5) is None for n in (*AFTER, None))
    assert confidence.after("creative") == () and not confidence.at_end("creative")
    assert "does not tell good answers of the task creative: AUC 0." in (confidence.silent("creative") or "")
    assert confidence.silent("math") == "no calibration for the task math"


def test_what_it_says_of_itself_is_measured_on_held_out_answers(rules: tuple[Rule, ...]) -> None:
    for rule in rules:
        assert (rule.auc > 0.75) if rule.task == "qa" else (0.3 < rule.auc < 0.65), rule
        assert rule.judges == (rule.task == "qa")
    early = next(rule for rule in rules if (rule.task, rule.after) == ("qa", 64))
    assert early.answers < 600  # shorter answers had ended before


def test_too_few_of_a_kind_fit_nothing() -> None:
    made = answers(200, 3, law=2.0)
    good = [each for each in made if each.good]
    bad = [each for each in made if not each.good]
    assert fit(good[: FEWEST_GOOD - 1] + bad) == ()
    assert fit(good + bad[: FEWEST_BAD - 1]) == ()
    assert {rule.after for rule in fit(good[:FEWEST_GOOD] + bad[:FEWEST_BAD])} >= {8, 16, None}


def test_later_tokens_do_not_change_what_was_said_after_eight(rules: tuple[Rule, ...]) -> None:
    confidence = Confidence(rules)
    short, long = trace([-1.0] * 8), trace([-1.0] * 8 + [-9.0] * 20)
    assert confidence.estimate("qa", 8, short, None, 0.5) == confidence.estimate("qa", 8, long, "stop", 0.5)


def test_what_is_not_known_counts_as_nothing() -> None:
    """Remote servers tell no entropies, and sometimes no margin."""
    unknown = np.full(9, np.nan)
    seen = dict(zip(FEATURES, features(Trace(np.full(9, -2.0), unknown, unknown), None, None), strict=True))
    assert seen["logprob_mean"] == seen["logprob_least"] == -2.0
    assert seen["entropy_most"] == seen["margin_mean"] == seen["prompt"] == 0.0


@given(
    st.lists(st.floats(-60, 0) | st.just(math.nan) | st.just(-math.inf), min_size=1, max_size=80),
    st.integers(0, 50),
    st.sampled_from(["stop", "length", "tool_calls", None]),
    st.none() | st.floats(0, 1),
)
@settings(max_examples=150)
def test_any_trace_gives_a_probability(
    rules: tuple[Rule, ...], logprobs: list[float], forced: int, finish: str | None, good: float | None
) -> None:
    seen = features(trace(logprobs, forced), finish, good)  # type: ignore[arg-type]
    assert seen.shape == (len(FEATURES),) and np.isfinite(seen).all()
    assert all(0 <= rule.estimate(seen) <= 1 for rule in rules)


def test_nothing_said_freely_is_not_judged(rules: tuple[Rule, ...]) -> None:
    assert Confidence(rules).estimate("qa", None, trace([], forced=9), "stop", 0.5) is None


def test_a_rule_just_good_enough_judges(rules: tuple[Rule, ...]) -> None:
    end = next(rule for rule in rules if (rule.task, rule.after) == ("qa", None))
    fields = {name: getattr(end, name) for name in Rule.__struct_fields__}
    assert Rule(**fields | {"auc": 0.65}).judges and not Rule(**fields | {"auc": 0.6499}).judges


def test_answers_are_told_apart_by_task() -> None:
    mixed = [replace(each, task="math") for each in answers(200, 5, law=2.0)] + answers(200, 6, law=2.0)
    assert {rule.task for rule in fit(mixed)} == {"math", "qa"}
