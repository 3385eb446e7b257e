from gateway.breaker import Breaker


def test_it_allows_everything_until_enough_failed_in_a_row() -> None:
    breaker = Breaker(failures=3, clock=lambda: 0.0)
    for _ in range(5):
        breaker.failed()
        breaker.failed()
        assert breaker.allows()
        breaker.succeeded()


def test_at_rest_it_allows_one_attempt_at_a_time_until_one_succeeds() -> None:
    now = 100.0
    breaker = Breaker(failures=2, rest=1.0, clock=lambda: now)
    breaker.failed()
    breaker.failed()
    assert not breaker.allows()
    now = 101.0
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    now = 102.0  # the attempt told nothing, not even that it failed
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    now = 102.5
    breaker.failed()
    now = 103.0
    assert not breaker.allows()
    now = 103.5
    assert breaker.allows()
    breaker.succeeded()
    assert [breaker.allows() for _ in range(3)] == [True, True, True]
