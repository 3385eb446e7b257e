"""The ledger as clients are told it: exact sums, every attempt, whoever pays."""

import pytest
from starlette.datastructures import Headers

from backends.backend import Delta, Usage
from gateway.api.ledger import told, wanted
from gateway.errors import ApiError
from gateway.ledger import ESCALATED, Ledger

USAGE = Usage(prompt_tokens=10, completion_tokens=3, cached_tokens=8)


def test_every_attempt_with_what_it_came_to() -> None:
    ledger = Ledger()
    small = ledger.open("7b", "7b/0")
    small.confidence, small.judged_after = 0.25, 16
    small.ends(ESCALATED)
    small.settled(None, USAGE, 0.1, billed=False)
    ledger.open("13b", "13b/0").ends("engine_died")
    ledger.open("70b", "70b/0").settled(Delta(usage=USAGE), USAGE, 0.2)
    said = told(ledger)
    assert (said["cost"], said["billed"]) == ("0.3", "0.2")
    first, second, third = said["ledger"]
    assert first.pop("seconds") >= 0
    assert first == {
        "tier": "7b", "replica": "7b/0", "outcome": "escalated", "prompt_tokens": 10, "cached_tokens": 8,
        "completion_tokens": 3, "confidence": 0.25, "judged_after": 16, "cost": "0.1", "billed": False,
    }  # fmt: skip
    assert (second["outcome"], second["prompt_tokens"], second["billed"]) == ("engine_died", 0, False)
    assert (third["outcome"], third["confidence"], third["billed"]) == ("answered", None, True)


def test_sums_are_those_of_the_limits() -> None:
    """In whole billionths, each attempt rounded up, as tenants are charged."""
    ledger = Ledger()
    for _ in range(3):
        ledger.open("7b", "7b/0").settled(None, USAGE, 0.1e-9)
    assert told(ledger)["billed"] == "0.000000003"


def test_nothing_was_tried() -> None:
    assert told(Ledger()) == {"ledger": [], "cost": "0", "billed": "0"}


@pytest.mark.parametrize(("value", "is_wanted"), [("true", True), ("false", False), (None, False)])
def test_who_wants_it(value: str | None, is_wanted: bool) -> None:
    assert wanted(Headers({} if value is None else {"x-headrace-ledger": value})) is is_wanted


@pytest.mark.parametrize("value", ["", "1", "yes", "TRUE"])
def test_anything_else_is_refused(value: str) -> None:
    with pytest.raises(ApiError) as error:
        wanted(Headers({"x-headrace-ledger": value}))
    assert error.value.status == 400 and error.value.param == "x-headrace-ledger"
