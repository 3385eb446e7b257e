"""What tokens cost."""

import pytest

from backends.backend import Usage
from gateway.config import Price
from gateway.prices import cost

PRICE = Price(input=2.0, cached=0.5, output=10.0)


@pytest.mark.parametrize(
    ("usage", "money"),
    [
        (Usage(prompt_tokens=0, completion_tokens=0), 0.0),
        (Usage(prompt_tokens=1_000_000, completion_tokens=0), 2.0),
        (Usage(prompt_tokens=1_000_000, completion_tokens=0, cached_tokens=400_000), 1.4),
        (Usage(prompt_tokens=100, completion_tokens=50, cached_tokens=100), 550e-6),
    ],
)
def test_each_kind_of_token_has_its_price(usage: Usage, money: float) -> None:
    assert cost(PRICE, usage) == pytest.approx(money)


def test_what_has_no_price_is_free() -> None:
    assert cost(Price(), Usage(prompt_tokens=10**9, completion_tokens=10**9)) == 0
