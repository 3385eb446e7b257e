"""The breaker on a clock of its own."""

import pytest

from backends.breaker import FAILURES, PAUSE, Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(clock=clock)


def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        trial = breaker.enter()
        breaker.failed()
        breaker.leave(trial)


def test_failures_in_a_row_open_it(breaker: Breaker) -> None:
    fail(breaker, FAILURES - 1)
    assert breaker.allows
    fail(breaker, 1)
    assert not breaker.allows


def test_a_success_in_between_starts_the_count_again(breaker: Breaker) -> None:
    fail(breaker, FAILURES - 1)
    breaker.succeeded()
    fail(breaker, FAILURES - 1)
    assert breaker.allows


def test_an_answer_that_never_becomes_whole_does_not_start_the_count_again(breaker: Breaker) -> None:
    """A server that dies in the middle of each answer is ill, though it begins every one of them."""
    for _ in range(FAILURES):
        breaker.alive()
        fail(breaker, 1)
    assert not breaker.allows


def test_half_open_lets_one_trial_through_at_a_time(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, FAILURES)
    clock.now += PAUSE
    assert breaker.allows
    assert breaker.enter()
    assert not breaker.allows
    breaker.leave(True)  # its client went away: nothing is known
    assert breaker.allows


def test_a_failed_trial_opens_it_for_another_pause(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, FAILURES)
    clock.now += PAUSE
    fail(breaker, 1)
    assert not breaker.allows
    clock.now += PAUSE - 0.1
    assert not breaker.allows
    clock.now += 0.1
    assert breaker.allows


def test_the_first_sign_of_life_closes_it_but_for_one_more_failure(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, FAILURES)
    clock.now += PAUSE
    trial = breaker.enter()
    breaker.alive()
    assert breaker.allows
    breaker.leave(trial)
    fail(breaker, 1)
    assert not breaker.allows


def test_tripping(breaker: Breaker, clock: Clock) -> None:
    breaker.trip()
    assert not breaker.allows
    clock.now += PAUSE
    assert breaker.allows


class Down(Exception):
    pass


class DownForGood(Down):
    """Only who works can tell."""


def ask(breaker: Breaker, raising: Exception | None = None) -> None:
    with breaker.asking(failures=Down, answers=(DownForGood,), resting=TimeoutError("resting")):
        if raising is not None:
            raise raising


def test_questions_are_counted_by_how_they_end(breaker: Breaker, clock: Clock) -> None:
    for error in (Down(), DownForGood(), *[Down()] * (FAILURES - 1), KeyError()):
        with pytest.raises(type(error)):
            ask(breaker, error)
    assert breaker.allows, "an answer closes it, and what tells nothing does not open it"
    with pytest.raises(Down):
        ask(breaker, Down())
    with pytest.raises(TimeoutError, match="resting"):
        ask(breaker)
    clock.now += PAUSE
    ask(breaker)
    assert not breaker.open
