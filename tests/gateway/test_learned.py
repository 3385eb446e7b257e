"""Whether a classifier and a calibration fit a configuration, and what is said where they are not here."""

from pathlib import Path

import pytest

from classifier.artefact import SHIPPED, ArtefactError
from gateway.config import Config, Policy, Price, Remote, Tenant, Tier
from gateway.learned import checked, unknown

SERVER = Remote(url="http://127.0.0.1:9/v1", model="m")


def config(*tiers: str, policy: Policy | None = None, **fields: object) -> Config:
    made = tuple(
        Tier(name=name, price=Price(input=1.0 + n), remotes=(SERVER,)) for n, name in enumerate(tiers)
    )
    return Config(tiers=made, tenants=(Tenant(name="acme", policy=policy or Policy()),), **fields)  # type: ignore[arg-type]


def test_all_is_known() -> None:
    assert list(checked(config("7b", "13b", "70b"))) == []
    assert list(checked(config("7b", "70b", classifier=str(SHIPPED)))) == []


def test_tiers_that_nobody_has_estimates_of_are_told() -> None:
    [told] = checked(config("7b", "huge"))
    assert told == (
        "the classifier knows 7b, 13b, 70b, not huge: requests for auto go there only where other tiers fail, or "
        "their answers are not good enough"
    )
    assert unknown(config("small", "large"), ["7b"]) == (
        "the classifier knows 7b, not small, large: requests for auto go to the cheapest tier"
    )


def test_a_goal_that_cannot_be_kept_is_told_by_its_place() -> None:
    goal = Policy(cost_share=0.5)
    with pytest.raises(ValueError, match=r"acme: policy\.cost_share: the classifier knows 7b, .* not x"):
        list(checked(config("7b", "x", policy=goal)))
    with pytest.raises(ValueError, match=r"acme: shadow_policies\.other\.cost_share: the classifier knows"):
        list(checked(config("7b", "x", shadow_policies={"other": goal})))


def test_what_is_not_on_this_machine_is_not_checked(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    assert list(checked(config("7b", classifier=gone, calibration=gone))) == [
        f"classifier: is not checked, as {gone} is not on this machine",
        f"calibration: is not checked, as {gone} is not on this machine",
    ]


def test_what_is_here_and_spoilt_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "calibration.json").write_text("{")
    with pytest.raises(ArtefactError, match=r"calibration\.json"):
        list(checked(config("7b", calibration=str(tmp_path / "calibration.json"))))
    with pytest.raises(ArtefactError, match=r"meta\.json"):
        list(checked(config("7b", classifier=str(tmp_path))))
