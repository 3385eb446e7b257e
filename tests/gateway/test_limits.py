"""The headers that a client sees, and the refusal as an exception."""

import contextlib
from collections.abc import Iterator

import pytest

from gateway.limits import NOTHING, LimitExceeded, LimitName, Remaining, Reservation, ratelimit_headers


def reservation(**left: Remaining) -> Reservation:
    named: dict[LimitName, Remaining] = left  # type: ignore[assignment]
    return Reservation(tenant="acme", lease="a", amount=NOTHING, periods=(0, 0), left=named)


def test_what_is_left_is_in_the_headers() -> None:
    outcome = reservation(
        requests=Remaining(limit=60, remaining=59, reset=1.0),
        tokens=Remaining(limit=150_000, remaining=149_984, reset=0.006),
    )
    assert ratelimit_headers(outcome) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-tokens": "6ms",
    }


def test_what_is_unlimited_has_no_headers() -> None:
    assert ratelimit_headers(reservation()) == {}
    only_tokens = ratelimit_headers(reservation(tokens=Remaining(limit=1, remaining=1, reset=0)))
    assert set(only_tokens) == {f"x-ratelimit-{word}-tokens" for word in ("limit", "remaining", "reset")}


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0s"), (0.0001, "1ms"), (0.25, "250ms"), (0.9999, "1s"), (1.0, "1s"), (1.5, "1.5s"), (10.0, "10s"),
        (59.9999, "1m0s"), (83.456, "1m23.456s"), (360.0, "6m0s"), (3600.0, "60m0s"),
    ],
)  # fmt: skip
def test_resets_are_written_as_openai_writes_durations(seconds: float, written: str) -> None:
    headers = ratelimit_headers(reservation(requests=Remaining(limit=1, remaining=0, reset=seconds)))
    assert headers["x-ratelimit-reset-requests"] == written


@pytest.mark.parametrize(
    ("after", "seconds", "milliseconds"),
    [(0.0, "1", "1"), (0.001, "1", "1"), (1.0, "1", "1000"), (1.0005, "2", "1001"), (59.2, "60", "59200")],
)
def test_a_refused_client_is_told_when_to_come_back(after: float, seconds: str, milliseconds: str) -> None:
    headers = ratelimit_headers(LimitExceeded(limit="requests", retry_after=after))
    assert headers == {"retry-after": seconds, "retry-after-ms": milliseconds}


def test_a_client_is_told_not_to_come_back_where_waiting_cannot_help() -> None:
    left = Remaining(limit=10, remaining=10, reset=0)
    headers = ratelimit_headers(LimitExceeded(limit="tokens", retry_after=None, left={"tokens": left}))
    assert headers["x-should-retry"] == "false"
    assert headers["x-ratelimit-remaining-tokens"] == "10"
    assert not {"retry-after", "retry-after-ms"} & set(headers)


def test_what_is_left_of_a_budget_is_money() -> None:
    left = Remaining(limit=50.0, remaining=0.000_000_125, reset=90_000.0)
    headers = ratelimit_headers(
        reservation(budget_day=left, input_tokens=Remaining(limit=5, remaining=0, reset=2))
    )
    assert headers == {
        "x-ratelimit-limit-budget-day": "50",
        "x-ratelimit-remaining-budget-day": "0.000000125",
        "x-ratelimit-reset-budget-day": "1500m0s",
        "x-ratelimit-limit-input-tokens": "5",
        "x-ratelimit-remaining-input-tokens": "0",
        "x-ratelimit-reset-input-tokens": "2s",
    }


@pytest.mark.parametrize("limit", ["budget_day", "budget_month"])
def test_nobody_sits_and_waits_for_a_new_budget(limit: LimitName) -> None:
    """SDKs wait for up to two minutes by `retry-after`, and try again for ever without `x-should-retry`."""
    assert ratelimit_headers(LimitExceeded(limit=limit, retry_after=30.0)) == {"x-should-retry": "false"}


def test_a_refusal_passes_through_a_context_manager() -> None:
    @contextlib.contextmanager
    def around() -> Iterator[None]:
        yield

    with pytest.raises(LimitExceeded, match=r"parallel: fits in 1\.000 s") as refusal, around():
        raise LimitExceeded(limit="parallel", retry_after=1.0)
    assert refusal.value.with_traceback(None) is refusal.value
