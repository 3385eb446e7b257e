"""The file of a calibration: what is written is read, and what is wrong with it is said."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from classifier.artefact import ArtefactError
from classifier.calibration import Calibration, Calibrations, load, save
from classifier.confidence import FEATURES, Rule

NONE = (0.0,) * len(FEATURES)
RULE = Rule(
    task="qa", after=8, mean=NONE, scale=(1.0,) * len(FEATURES), weights=NONE, bias=0.5, auc=0.8,
    calibration_error=0.02, answers=200, good=120,
)  # fmt: skip


def changed(**fields: Any) -> Rule:
    return msgspec.structs.replace(RULE, **fields)


def with_rules(*rules: Rule) -> Calibrations:
    return Calibrations(models=(Calibration(model="m", weights="bfloat16", rules=rules),))


def test_written_and_read(tmp_path: Path) -> None:
    written = with_rules(RULE, changed(after=None))
    save(tmp_path / "c.json", written)
    assert load(tmp_path / "c.json") == written


def test_it_is_of_a_model_in_a_format() -> None:
    calibrations = with_rules(RULE)
    assert calibrations.of("m", "bfloat16") is not None
    assert calibrations.of("m", "int8") is calibrations.of("other", "bfloat16") is None
    assert calibrations.other_weights("m") == ("bfloat16",) and calibrations.other_weights("x") == ()


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([RULE, RULE], r"models\[0\].rules\[1\]: a second rule for the same task"),
        ([changed(after=9)], r"rules\[0\].after: 9 is none of 8, 16, 32, 64"),
        ([changed(weights=(1.0,))], "weights: has 1 numbers, not"),
        ([changed(scale=NONE)], "scale: holds numbers that are not above 0"),
        ([changed(auc=1.5)], "bias or auc"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, rules: list[Rule], words: str) -> None:
    save(tmp_path / "c.json", with_rules(*rules))
    with pytest.raises(ArtefactError, match=words):
        load(tmp_path / "c.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"format": 2}', "format is version 2, not 1; calibrate again"),
        ('{"features": 9}', "features is version 9"),
        ('{"models": [{}]}', "missing required field"),
        ('{"extra": 1}', "unknown field"),
        ("nonsense", "malformed"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(ArtefactError, match=words):
        load(tmp_path / "c.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"none\.json: No such file"):
        load(tmp_path / "none.json")


def test_a_second_calibration_of_the_same_model_is_refused(tmp_path: Path) -> None:
    [one] = with_rules(RULE).models
    save(tmp_path / "c.json", Calibrations(models=(one, one)))
    with pytest.raises(ArtefactError, match=r"models\[1\]: a second calibration of m in bfloat16"):
        load(tmp_path / "c.json")
