import pytest

from backends.engine.speculation.costs import StepCosts


def measured(*steps: tuple[int, int, float]) -> StepCosts:
    costs = StepCosts()
    for rows, drafted, seconds in steps:
        costs.learn(rows, drafted, seconds, 1.0)
    return costs


@pytest.mark.parametrize(("drafted", "ratio"), [(1, 1.1), (2, 1.2), (3, 1.5), (4, 1.8), (8, 3.0), (16, 5.4)])
def test_between_and_beyond_what_was_measured(drafted: int, ratio: float) -> None:
    costs = measured((1, 0, 0.5), (1, 2, 0.6), (1, 4, 0.9))
    assert costs.ratio(1, drafted) == pytest.approx(ratio)
    assert costs.tried(1) == 4


def test_nothing_is_known_of_other_batches_or_without_a_step_to_compare_with() -> None:
    costs = measured((1, 0, 0.5), (2, 4, 0.6), (3, 0, 0.6))
    assert [costs.ratio(rows, 2) for rows in (1, 2, 3, 4)] == [None] * 4
    assert [costs.tried(rows) for rows in (1, 2, 3, 4)] == [0, 4, 0, 0]


def test_times_count_in_terms_of_what_was_predicted() -> None:
    """A machine at half its speed, and a context that has grown, cost nothing."""
    costs = StepCosts()
    for plain in (0.1, 0.2, 0.4):
        costs.learn(1, 0, plain, plain)
        costs.learn(1, 4, 1.5 * plain, plain)
    assert costs.ratio(1, 4) == pytest.approx(1.5)


def test_drafts_are_never_taken_to_save_time() -> None:
    assert measured((1, 0, 1.0), (1, 2, 0.8)).ratio(1, 2) == 1.0


def test_what_cannot_be_compared_is_left_out() -> None:
    costs = StepCosts()
    costs.learn(1, 0, 1.0, None)
    costs.learn(1, 2, 0.0, 1.0)
    assert costs.ratio(1, 2) is None


def test_the_last_steps_count_and_a_stall_hardly() -> None:
    costs = measured(*[(1, 0, 1.0), (1, 2, 2.0)] * 50)
    costs.learn(1, 2, 1000.0, 1.0)
    assert 2 < (costs.ratio(1, 2) or 0) < 2.5
    for _ in range(100):
        costs.learn(1, 2, 1.2, 1.0)
    assert costs.ratio(1, 2) == pytest.approx(1.2, abs=0.01)
