"""What options go together, and what each method takes where nothing is said."""

from typing import Any

import pytest

from backends.quantize.settings import Settings, SettingsError, settings


def test_each_method_has_its_defaults() -> None:
    assert settings("awq") == Settings(method="awq", bits=4, group=128, asymmetric=True)
    assert settings("gptq", group=0) == Settings(method="gptq", bits=4, group=0, act_order="static")
    assert settings("rtn", bits=8) == Settings(method="rtn", bits=8)
    assert settings("fp8") == Settings(method="fp8", bits=8, group=0)
    assert [settings(method).calibrated for method in ("awq", "gptq", "rtn", "fp8")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"method": "fp8", "bits": 4}, "--bits: fp8 has 8, not 4"),
        ({"method": "fp8", "group": 64}, "--group: fp8 has a scale for each row"),
        ({"method": "awq", "bits": 3}, "--bits: must be 4 or 8, not 3"),
        ({"method": "rtn", "group": 100}, "--group: must be 32, 64, 128, or 0 for whole rows, not 100"),
        ({"method": "fp8", "asymmetric": True}, "--asymmetric: is for rtn and gptq; fp8 has no zeros"),
        ({"method": "awq", "asymmetric": True}, "--asymmetric: is for rtn and gptq; awq is always so"),
        (
            {"method": "gptq", "asymmetric": True, "act_order": "dynamic"},
            "--act-order: dynamic is for groups without zeros",
        ),
        ({"method": "awq", "act_order": "static"}, "--act-order: is for gptq"),
        ({"method": "rtn", "samples": 3}, "--samples, --length: rtn watches no model at work"),
    ],
)
def test_what_a_method_does_not_know_is_refused_by_name(asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        settings(**asked)
