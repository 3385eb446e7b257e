"""Decisions alone: no runner, tokens are appended by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from backends.engine.cache import BlockCache
from backends.engine.pace import CostModel
from backends.engine.scheduler import Scheduler
from backends.engine.sequence import Sequence
from backends.wire import EngineConfig

Make = Callable[..., Sequence]


def scheduler(blocks: int = 64, budget: int = 8, rows: int = 4, **options: Any) -> Scheduler:
    config = EngineConfig(
        name="e/0", model="", socket="", vocabulary="",
        token_budget=budget, max_sequences=rows, **options,
    )  # fmt: skip
    return Scheduler(BlockCache(blocks, 2), config, CostModel())


def run(scheduler: Scheduler) -> dict[str, int]:
    """One step: what is scheduled is computed, complete sequences get a token, finished ones leave."""
    scheduled = scheduler.schedule()
    counts = {sequence.id: count for sequence, count in scheduled}
    for sequence, count in scheduled:
        sequence.computed += count
        if sequence.computed == len(sequence.ids):
            sequence.ids.append(1000 + len(sequence.ids))
        if len(sequence.ids) >= sequence.max_length:
            scheduler.remove(sequence, keep=True)
    scheduler.check()
    return counts


def test_a_long_prompt_is_chunked_and_stalls_no_answer(sequence: Make) -> None:
    plan = scheduler(budget=8)
    plan.add(sequence([1, 2, 3], id="short", number=0, max_length=20))
    assert run(plan) == {"short": 3}
    plan.add(sequence([5] * 20, id="long", number=1, max_length=30))
    assert run(plan) == {"short": 1, "long": 7}
    assert run(plan) == {"short": 1, "long": 7}
    assert run(plan) == {"short": 1, "long": 6}
    assert run(plan) == {"short": 1, "long": 1}


def test_what_is_left_of_the_budget_admits_the_next(sequence: Make) -> None:
    plan = scheduler(budget=8)
    for number, id in enumerate("abc"):
        plan.add(sequence([number] * 5, id=id, number=number))
    assert run(plan) == {"a": 5, "b": 3}
    assert run(plan) == {"a": 1, "b": 2, "c": 5}


def test_waiting_goes_by_priority_then_arrival(sequence: Make) -> None:
    plan = scheduler(rows=1)
    for number, (id, priority) in enumerate([("a", 0), ("b", 1), ("c", 0), ("d", -1)]):
        plan.add(sequence([number] * 3, id=id, number=number, priority=priority, max_length=5))
    order = [next(iter(run(plan))) for _ in range(8)]
    assert order == ["d", "d", "a", "a", "c", "c", "b", "b"]


def test_no_more_rows_than_allowed(sequence: Make) -> None:
    plan = scheduler(rows=2)
    for number in range(3):
        plan.add(sequence([number], id=str(number), number=number))
    assert run(plan) == {"0": 1, "1": 1}
    assert run(plan) == {"0": 1, "1": 1}


def test_a_cached_prefix_leaves_budget_to_others(sequence: Make) -> None:
    plan = scheduler(budget=8)
    plan.add(sequence([1, 2, 3, 4, 5, 6, 7], id="first", max_length=8))
    run(plan)
    plan.add(sequence([1, 2, 3, 4, 5, 6, 9], id="like it", number=1))
    plan.add(sequence([0] * 7, id="other", number=2))
    assert run(plan) == {"like it": 1, "other": 7}
    assert (plan.queues.queries, plan.queues.hits) == (21, 6)


def test_out_of_blocks_the_last_one_goes_back_and_keeps_its_answer(sequence: Make) -> None:
    plan = scheduler(blocks=8)
    first = sequence([1] * 5, id="first", number=0, max_length=15)
    last = sequence([2] * 5, id="last", number=1, max_length=15)
    plan.add(first)
    plan.add(last)
    while not plan.queues.preemptions:
        run(plan)
    assert plan.running == [first] and list(plan.waiting) == [last]
    answer = len(last.ids)
    assert answer > 5 and last.computed == 0 and not last.blocks
    while len(first.ids) < first.max_length:
        assert run(plan).get("first") == 1
        assert len(last.ids) == answer
    while len(last.ids) < last.max_length:
        run(plan)
    assert plan.queues.preemptions == 1


def test_the_lowest_priority_goes_before_the_latest_arrival(sequence: Make) -> None:
    plan = scheduler(blocks=8)
    low = sequence([1] * 5, id="low", number=0, priority=1, max_length=15)
    high = sequence([2] * 5, id="high", number=1, max_length=15)
    plan.add(low)
    run(plan)
    plan.add(high)
    while not plan.queues.preemptions:
        run(plan)
    assert list(plan.waiting) == [low]


def test_none_starts_that_does_not_fit_beside_what_the_others_need(sequence: Make) -> None:
    """Were the first chunk enough to start, the two would hold half of the blocks each: vllm#25538, #45388."""
    plan = scheduler(blocks=10, budget=4)
    plan.add(sequence([1] * 13, id="a", number=0, max_length=15))
    plan.add(sequence([2] * 13, id="b", number=1, max_length=15))
    seen = []
    while plan.running or plan.waiting:
        counts = run(plan)
        assert counts
        seen.append(set(counts))
    assert plan.queues.preemptions == 0
    assert seen == [{"a"}] * 5 + [{"b"}] * 5


def test_a_preempted_one_comes_back_only_when_it_can_stay_a_while(sequence: Make) -> None:
    """No thrash: between two preemptions lie many tokens, not a few steps of computing the same again."""
    plan = scheduler(blocks=20, budget=16, rows=8)
    for number in range(8):
        plan.add(sequence([number] * 4, id=str(number), number=number, max_length=30))
    computed = steps = 0
    while plan.running or plan.waiting:
        computed += sum(run(plan).values())
        steps += 1
        assert steps < 1000
    needed = 8 * 29
    assert computed < 1.5 * needed
    assert 0 < plan.queues.preemptions < 8 * 3


def test_a_preempted_one_keeps_its_place(sequence: Make) -> None:
    """vllm#41951: it must not go behind those that came after it."""
    plan = scheduler(blocks=8)
    for number, id in enumerate(["first", "second"]):
        plan.add(sequence([number] * 5, id=id, number=number, max_length=15))
    run(plan)
    plan.add(sequence([7] * 5, id="third", number=2))
    while not plan.queues.preemptions:
        run(plan)
    assert [each.id for each in plan.waiting] == ["second", "third"]


def test_the_first_always_gets_on(sequence: Make) -> None:
    plan = scheduler(blocks=6, budget=3)
    for number in range(5):
        plan.add(sequence([number] * 7, id=str(number), number=number, max_length=12))
    finished: list[str] = []
    while plan.running or plan.waiting:
        first = min([*plan.running, *plan.waiting], key=lambda each: each.rank)
        assert first.id in run(plan)
        if first not in plan.running:
            finished.append(first.id)
    assert finished == sorted(finished) and len(finished) == 5


def test_removing_a_waiting_one_and_a_running_one(sequence: Make) -> None:
    plan = scheduler(rows=1)
    one, other = sequence([1] * 5, number=0), sequence([2] * 5, number=1)
    plan.add(one)
    plan.add(other)
    run(plan)
    plan.remove(one, keep=True)
    plan.remove(other, keep=True)
    plan.check()
    assert not plan.running and not plan.waiting and plan.schedule() == []


@pytest.mark.parametrize("limits", [{"budget": 0}, {"rows": 0}, {"blocks": 0}])
def test_limits_must_be_positive(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="not positive"):
        scheduler(**limits)
