"""Steps launched ahead change nothing in what is told; they are launched only where nothing can be in the way."""

from collections.abc import Callable
from typing import Any

import pytest

from backends.wire import Grammar

Make = Callable[..., Any]
VOCABULARY_END = 10**6  # no token


def test_answers_are_the_same_and_all_steps_but_the_first_are_ahead(rig: Make, expected: Make) -> None:
    ours = rig(overlap=True)
    answers = [ours.submit([1, 2, length], 10 + length) for length in range(4)]
    ours.run()
    for length, answer in enumerate(answers):
        assert answer.ids == expected([1, 2, length], 10 + length).ids
    assert ours.runner.followed == 12
    assert len(ours.runner.batches) == 13  # as many as the longest answer has tokens


def test_a_step_too_many_is_thrown_away(rig: Make, expected: Make) -> None:
    """One answer ends by a stop token while its next row is on its way; its blocks go to one who comes then."""
    ours, prompt = rig(overlap=True, kv_blocks=12), [3, 1]
    right = expected(prompt, 12)
    place = next(at for at in range(2, 12) if right.ids[at] not in right.ids[:at])
    first = ours.submit(prompt, 12, stop_token_ids=(right.ids[place],))
    other = ours.submit([5, 5, 5], 14)
    while first.finish is None:
        ours.step()
    late = ours.submit([7, 8, 9, 7, 8, 9], 9)
    ours.run()
    assert first.finish == "stop" and first.ids == right.ids[: place + 1]
    assert other.ids == expected([5, 5, 5], 14).ids
    assert late.ids == expected([7, 8, 9, 7, 8, 9], 9).ids


def test_aborting_while_a_step_is_on_its_way(rig: Make, expected: Make) -> None:
    ours = rig(overlap=True)
    ours.submit([1, 1], 20, id="gone")
    other = ours.submit([2, 2], 20)
    for _ in range(5):
        ours.step()
    ours.engine.abort(b"gw", "gone")
    ours.run()
    assert other.ids == expected([2, 2], 20).ids
    assert len(ours.answers[b"gw", "gone"].ids) < 20


@pytest.mark.parametrize(
    "options",
    [
        {"presence_penalty": 0.5},
        {"grammar": Grammar("regex", "[ab]{8}")},
        {"logprobs": None, "repetition_penalty": 1.1},
    ],
)
def test_whoever_needs_the_last_token_keeps_all_steps_in_line(rig: Make, options: dict[str, Any]) -> None:
    ours = rig(overlap=True)
    ours.submit([4, 4], 6, **options)
    ours.submit([1, 2], 6)
    ours.run()
    assert ours.runner.followed == 0


def test_nothing_is_launched_ahead_while_somebody_waits(rig: Make) -> None:
    ours = rig(overlap=True, max_sequences=1)
    first = ours.submit([1, 2], 6)
    ours.submit([3, 4], 2)
    while first.finish is None:
        ours.step()
        assert not ours.runner.followed
    ours.run()


def test_a_failure_ahead_ends_those_who_are_in_it_and_not_the_engine(rig: Make, expected: Make) -> None:
    ours = rig(overlap=True)
    answer = ours.submit([1, 2], 8)
    ours.step()
    ours.runner.failures.append(RuntimeError("lost"))
    ours.run()
    assert answer.finish == "error"
    assert ours.ask([1, 2], 8).ids == expected([1, 2], 8).ids


def test_a_step_too_many_may_fail(rig: Make, expected: Make) -> None:
    """It has a row of a sequence that has ended well; the other one is in it by right."""
    ours = rig(overlap=True)
    first = ours.submit([1, 2], 30, stop_token_ids=(expected([1, 2], 4).ids[3],))
    other = ours.submit([5, 5, 5], 30)
    while first.finish is None:
        ours.step()
    ours.runner.answers.append([[VOCABULARY_END], [VOCABULARY_END]])
    ours.run()
    assert first.finish == "stop"
    assert other.finish == "error" and other.ids == expected([5, 5, 5], 30).ids[: len(other.ids)]


def test_without_a_device_that_works_by_itself_steps_stay_in_line(rig: Make) -> None:
    ours = rig()
    ours.ask([1, 2], 6)
    assert ours.runner.followed == 0
