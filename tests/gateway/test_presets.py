"""What comes with the package fits together."""

import tomllib
from pathlib import Path

import pytest

from backends.catalogue import find
from classifier import Assessment
from classifier.calibration import load
from classifier.model import Classifier
from gateway import weights
from gateway.configfile import load_preset
from gateway.judges import Brief
from gateway.routing import TierSignals
from gateway.weights import open_judges

LAPTOP = load_preset("laptop")
ANYBODY = LAPTOP.anonymous


def test_the_laptops_calibration_is_of_its_models() -> None:
    """In the format that they run in everywhere, so that answers are judged whatever the CPU."""
    assert LAPTOP.calibration is not None
    known = {find(engine.model).sha256 for tier in LAPTOP.tiers for engine in tier.engines}
    found = load(Path(LAPTOP.calibration))
    assert {each.model for each in found.models} <= known
    assert {each.weights for each in found.models} == {"int8"}
    assert any(rule.judges for each in found.models for rule in each.rules)
    assert {engine.quantization for tier in LAPTOP.tiers for engine in tier.engines} == {"int8"}


def test_the_laptops_middle_tier_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the models were here; and it is known what the dearest would make of what it is unsure of."""
    monkeypatch.setattr(weights, "resolve", lambda model: model)
    monkeypatch.setattr(weights, "fingerprint", lambda model: find(model).sha256)
    assert ANYBODY is not None
    judges = open_judges(LAPTOP)
    assert judges.may(ANYBODY, "13b")
    signals = [
        TierSignals(name=tier.name, available=True, context_length=9, prompt_tokens=1, cached_tokens=0)
        for tier in LAPTOP.tiers
    ]
    math = Assessment(task="math", good={"13b": 0.5, "70b": 0.7}, seconds=0.0)
    brief = judges.brief(ANYBODY, "13b", math, 1, signals)
    assert isinstance(brief, Brief)
    [above] = brief.stakes.above
    unsure, sure = above.expected(0.1), above.expected(0.9)
    assert unsure is not None and sure is not None and unsure < sure


def test_the_laptops_router_is_of_its_tiers() -> None:
    """A sum of large numbers is nothing for the smallest."""
    assert LAPTOP.classifier is not None
    found = Classifier.load(Path(LAPTOP.classifier)).assess("What is 7 * 986? Answer with the number only.")
    assert list(found.good) == [tier.name for tier in LAPTOP.tiers]
    assert found.good["7b"] < 0.3 < found.good["70b"]


def test_every_file_of_a_preset_is_packed() -> None:
    root = Path(__file__).parents[2]
    packed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"][
        "gateway"
    ]
    files = {file for pattern in packed for file in (root / "gateway").glob(pattern)}
    assert {file for file in (root / "gateway" / "presets").rglob("*") if file.is_file()} <= files
