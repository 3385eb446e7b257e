"""The weight of a tenant's goal, kept to what is asked."""

from gateway.config import Goal, Price
from gateway.tradeoff import RENEW, WINDOW, Balance


def balance(share: float) -> Balance:
    sample = {"7b": [0.2] * 50 + [0.8] * 50, "70b": [0.9] * 100}
    return Balance(Goal("small_share", share), None, ["7b", "70b"], sample, [Price(input=1), Price(input=16)])


def test_a_balance_starts_from_the_sample_and_follows_the_requests() -> None:
    kept = balance(0.5)
    cost = {"7b": 1e-4, "70b": 16e-4}
    before = kept.weight
    for n in range(WINDOW):  # gains are ten times smaller than in the sample
        kept.saw({"7b": 0.5, "70b": 0.5 + 0.07 * (n % 10) / 10}, cost)
    assert kept.weight < before
    gains = [0.07 * n / 10 for n in range(10)]
    assert sum(gain <= kept.weight * 15e-4 for gain in gains) == 5


def test_a_balance_is_renewed_now_and_then_and_ignores_what_it_cannot_use() -> None:
    kept = balance(0.5)
    before = kept.weight
    for _ in range(RENEW):
        kept.saw({"7b": 0.5}, {"7b": 1.0, "70b": 2.0})
    assert kept.weight == before
    for _ in range(RENEW - 1):
        kept.saw({"7b": 0.0, "70b": 1.0}, {"7b": 1.0, "70b": 2.0})
    assert kept.weight == before
    kept.saw({"7b": 0.0, "70b": 1.0}, {"7b": 1.0, "70b": 2.0})
    assert kept.weight != before
