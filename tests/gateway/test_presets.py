"""What comes with the package fits together."""

import tomllib
from pathlib import Path

import pytest

from backends.catalogue import find
from classifier.calibration import load
from gateway import weights
from gateway.configfile import load_preset
from gateway.weights import open_judges

LAPTOP = load_preset("laptop")
ANYBODY = LAPTOP.anonymous
FLOAT32 = "float32"


def test_the_laptops_calibration_is_of_its_models() -> None:
    assert LAPTOP.calibration is not None
    known = {find(engine.model).sha256 for tier in LAPTOP.tiers for engine in tier.engines}
    found = load(Path(LAPTOP.calibration))
    assert {each.model for each in found.models} <= known
    assert {each.weights for each in found.models} == {FLOAT32}
    assert any(rule.judges for each in found.models for rule in each.rules)


def test_it_judges_where_weights_are_computed_in_what_it_was_measured_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if the models were here, on a CPU without bfloat16, and on one with it."""
    monkeypatch.setattr(weights, "resolve", lambda model: model)
    monkeypatch.setattr(weights, "fingerprint", lambda model: find(model).sha256)
    assert ANYBODY is not None
    for dtype, judged in ((FLOAT32, True), ("bfloat16", False)):
        monkeypatch.setattr(weights, "auto_dtype", lambda device, dtype=dtype: dtype)
        judges = open_judges(LAPTOP)
        assert judges.may(ANYBODY, "13b") is judged
    assert "calibrated for weights in float32, not in bfloat16" in str(judges.brief(ANYBODY, "13b", None))


def test_every_file_of_a_preset_is_packed() -> None:
    root = Path(__file__).parents[2]
    packed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"][
        "gateway"
    ]
    files = {file for pattern in packed for file in (root / "gateway").glob(pattern)}
    assert set((root / "gateway" / "presets").iterdir()) <= files
