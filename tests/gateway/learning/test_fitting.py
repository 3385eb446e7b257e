"""From recordings to the calibration that a gateway loads."""

from pathlib import Path
from typing import Any

from classifier.calibration import load, save
from gateway.config import Price, Tier
from gateway.learning.calibrating import calibrate
from gateway.learning.report import report


def test_each_model_gets_its_own(tmp_path: Path, two_tiers: list[Any]) -> None:
    found = calibrate(two_tiers)
    save(tmp_path / "c.json", found)
    assert load(tmp_path / "c.json") == found
    small = found.of("model of small", "float32")
    assert small is not None and {rule.after for rule in small.rules} >= {8, 16, None}
    assert all(rule.judges and rule.answers <= 300 for rule in small.rules if rule.after in (8, 16, None))


def test_what_is_known_of_other_models_stays(two_tiers: list[Any], made: Any) -> None:
    before = calibrate(two_tiers)
    after = calibrate(made.tier("small", 200, 0.0, 3.0), before)
    assert len(after.models) == 2
    assert after.of("model of large", "float32") == before.of("model of large", "float32")
    assert after.of("model of small", "float32") != before.of("model of small", "float32")


def test_too_few_answers_make_none(made: Any) -> None:
    few = made.tier("small", 20, 0.0, 3.0)
    assert calibrate(few).models == ()
    # What was known is older.
    assert calibrate(few, calibrate(made.tier("small", 200, 0.0, 3.0))).models == ()


def test_one_model_in_several_tiers_counts_once(made: Any) -> None:
    one = made.tier("small", 200, 0.0, 3.0)
    again = [made.recording(n, "other", r.good, list(r.logprobs), model=r.model) for n, r in enumerate(one)]
    assert calibrate([*one, *again]) == calibrate(one)


def test_the_report_says_what_it_is_worth(two_tiers: list[Any], made: Any) -> None:
    tiers = [
        Tier(name="tiny", price=Price(input=0.1, output=0.1)), Tier(name="small", price=Price(input=1, output=1)),
        Tier(name="large", price=Price(input=10, output=10)),
    ]  # fmt: skip
    recordings = [*made.tier("tiny", 300, -4.0, 0.0), *two_tiers]
    text = "\n".join(report(recordings, tiers, calibrate(recordings)))
    assert "tiny         no rule: too few good or bad answers" in text
    assert "made: 300 samples answered by small and large" in text
    assert "always large                     100.0%" in text and "from small, end, threshold 0.5" in text
