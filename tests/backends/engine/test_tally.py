"""What is counted of answers: whether they begin in time, and whether they keep their pace."""

from collections.abc import Callable
from typing import Any

import pytest

from backends.engine.sequence import Sequence
from backends.engine.tally import LONGEST_WAIT, SHORTEST_WAIT, Tally
from backends.wire import GAPS, MAX_STEPS, STEP_SIZES, StepRun

Make = Callable[..., Sequence]


def test_a_first_token_counts_for_the_band_in_which_its_sequence_started(sequence: Make) -> None:
    tally = Tally(2)
    for band, delay, batch in [(0, 0.1, False), (1, 0.3, False), (1, 0.1, False), (0, 9.0, True)]:
        one = sequence([1, 2], arrived=10.0, batch=batch)
        tally.step([(one, 2)], 10.0, band)
        tally.step([(one, 1)], 10.0, 1 - band)  # it has started already
        tally.token(one, 10.0 + delay, 0.2)
        tally.token(one, 99.0, 0.2)
    fields = tally.fields()
    assert (fields["first_in_time"], fields["first_late"]) == ((1, 1), (0, 1))
    assert (fields["prompt_tokens"], fields["generation_tokens"]) == (8, 8)
    assert (fields["steps"], fields["step_rows"], fields["step_tokens"]) == (8, 8, 12)


@pytest.mark.parametrize(
    ("tokens", "seconds", "batch", "streams", "at_pace"),
    [(21, 1.0, False, 1, 1), (20, 1.0, False, 1, 0), (41, 1.0, True, 0, 0), (1, 0.0, False, 0, 0)],
)
def test_a_reader_gets_twenty_tokens_a_second(
    sequence: Make, tokens: int, seconds: float, batch: bool, streams: int, at_pace: int
) -> None:
    tally = Tally(1)
    one = sequence([1, 2], batch=batch, first_token=5.0)
    one.ids.extend([3] * tokens)
    tally.end(one, "length", 5.0 + seconds)
    fields = tally.fields()
    assert (fields["streams"], fields["streams_at_pace"]) == (streams, at_pace)
    assert fields["finished"] == {"length": 1}


def test_gaps_between_tokens_and_sizes_of_steps_are_counted_by_size(sequence: Make) -> None:
    tally = Tally(1)
    one, other = sequence([1, 2]), sequence([1])
    for now in (5.0, 5.015, 5.05, 205.05):
        tally.token(one, now, 1.0)
    tally.token(other, 7.0, 1.0)
    tally.step([(one, 1), (other, 7)], 0.0, 0)
    tally.step([(one, 9)], 0.0, 0)
    tally.step([(one, 20_000)], 0.0, 0)
    fields = tally.fields()
    gaps = dict(zip((*GAPS, None), fields["gaps"], strict=True))
    assert {end: count for end, count in gaps.items() if count} == {0.025: 1, 0.05: 1, None: 1}
    assert fields["gap_seconds"] == pytest.approx(200.05)
    sizes = dict(zip((*STEP_SIZES, None), fields["step_sizes"], strict=True))
    assert {end: count for end, count in sizes.items() if count} == {8: 1, 16: 1, None: 1}
    assert fields["step_tokens"] == 20_017


def test_what_never_began_is_no_stream(sequence: Make) -> None:
    tally = Tally(1)
    tally.end(sequence([1]), "abort", 5.0)
    assert tally.fields()["streams"] == 0


def test_who_is_sent_away_is_told_how_long_the_queue_takes(sequence: Make) -> None:
    tally = Tally(1)
    assert tally.patience(100, 0.0) == SHORTEST_WAIT  # nobody knows
    for second in range(100):
        tally.step([(sequence([1]), 1)], 0.5 * second, 0)
    assert tally.patience(40, 50.0) == pytest.approx(40 / 2 * 0.5, rel=0.05)
    assert tally.patience(0, 50.0) == SHORTEST_WAIT
    assert tally.patience(40, 5000.0) == LONGEST_WAIT


def test_the_steps_of_a_sequence_are_told_where_they_are_asked_for(rig: Callable[..., Any]) -> None:
    engine = rig()
    watched = engine.submit([5] * 40, 3, steps=True)
    other = engine.submit([6] * 4, 8)
    while engine.engine.has_work:
        engine.now += 0.25  # between steps
        engine.step()
    steps = watched.last.timings.steps
    assert sum(step.tokens for step in steps) == 42 and [step.tokens for step in steps[-2:]] == [1, 1]
    assert all(step.began <= step.ended for step in steps)
    assert [step.began for step in steps] == sorted({step.began for step in steps})
    assert steps[0].total == 32 and {step.rows for step in steps} <= {1, 2}
    assert watched.last.timings.arrived <= steps[0].began and steps[-1].ended <= watched.last.timings.finished
    assert other.last.timings.steps == ()


def test_not_more_of_them_than_a_message_should_hold(sequence: Make) -> None:
    tally, one = Tally(1), sequence([1, 2], steps=[])
    for number in range(MAX_STEPS + 5):
        tally.ran([(one, 1)], float(number), number + 0.5)
    assert one.steps is not None and len(one.steps) == MAX_STEPS
    assert one.steps[0] == StepRun(0.0, 0.5, 1, 1, 1)
