"""What tokens cost, and money in whole billionths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.backend import Usage
from gateway.config import Price
from gateway.prices import billionths, cost, most, written

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


def test_part_of_a_billionth_is_a_whole_one() -> None:
    assert billionths(13.5e-9) == 14
    assert billionths(0) == 0


@pytest.mark.parametrize("money", [0.1, 0.3, 0.7, 1.1, 49.99, 7_999_999.99])
def test_what_a_float_is_off_by_is_not_charged(money: float) -> None:
    assert billionths(money) == round(money * 100) * 10**7


prices = st.builds(Price, input=st.floats(0, 100), cached=st.floats(0, 100), output=st.floats(0, 100))


@given(prices, st.integers(0, 10**6), st.integers(0, 10**5), st.floats(0, 1))
def test_nothing_costs_more_than_its_worst_case(price: Price, prompt: int, made: int, share: float) -> None:
    usage = Usage(prompt_tokens=prompt, completion_tokens=made, cached_tokens=int(prompt * share))
    assert billionths(cost(price, usage)) <= billionths(most(price, prompt, made)) + 1  # of floats


def test_money_is_written_without_exponent_and_without_empty_decimals() -> None:
    assert [written(n) for n in (0, 50, 2.5, 1e-9, 8_000_000)] == ["0", "50", "2.5", "0.000000001", "8000000"]
