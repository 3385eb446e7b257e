"""Who gets rows, tokens and blocks when there is not enough for all: between tenants, and between kinds of traffic."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from backends.engine.cache import BlockCache
from backends.engine.pace import CostModel
from backends.engine.scheduler import Scheduler
from backends.engine.sequence import Sequence
from backends.wire import Band, EngineConfig

Make = Callable[..., Sequence]
BLOCK = 2


class Plan:
    """A scheduler whose sequences are run by hand. Everything is checked after every step."""

    def __init__(
        self, make: Make, blocks: int = 4096, budget: int = 16, rows: int = 128, **options: Any
    ) -> None:
        fields: dict[str, Any] = {"bands": (Band(rows=rows, ttft_ms=100),), "max_sequences": rows} | options
        config = EngineConfig(name="e/0", model="", socket="", vocabulary="", token_budget=budget, **fields)
        self.scheduler = Scheduler(BlockCache(blocks, BLOCK), config, CostModel())
        self.make = make
        self.made: list[Sequence] = []
        self.used: Counter[str] = Counter()

    def add(self, length: int, answer: int = 4, **fields: Any) -> Sequence:
        number = len(self.made)
        prompt = [1000 * (number + 1) + at for at in range(length)]
        sequence = self.make(prompt, number=number, max_length=length + answer, **fields)
        self.made.append(sequence)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> dict[Sequence, int]:
        counts = dict(self.scheduler.schedule())
        for sequence, count in counts.items():
            self.used[sequence.tenant] += count
            sequence.computed += count
            if sequence.computed == len(sequence.ids):
                sequence.ids.append(7)
            if len(sequence.ids) >= sequence.max_length:
                self.scheduler.remove(sequence, keep=True)
        self.scheduler.check()
        return counts

    def until(self, holds: Callable[[], bool]) -> int:
        """Steps that it took."""
        for steps in range(5000):
            if holds():
                return steps
            self.step()
        raise AssertionError("it never came true")

    @property
    def done(self) -> bool:
        return not (self.scheduler.running or self.scheduler.waiting)


@pytest.fixture
def plan(sequence: Make) -> Callable[..., Plan]:
    return lambda **options: Plan(sequence, **options)


def answered(sequence: Sequence) -> bool:
    return len(sequence.ids) > sequence.prompt_length


def test_a_short_prompt_does_not_wait_for_a_long_one(plan: Callable[..., Plan]) -> None:
    """Not even its own tenant's; and however many come, the long one has half of the budget."""
    made = plan(budget=16)
    long = made.add(400)
    made.step()
    for _ in range(30):
        short = made.add(8, answer=1)
        assert made.step() == {long: 8, short: 8}
    assert made.until(lambda: answered(long)) == -(-(400 - 16 - 30 * 8) // 16)


def test_the_first_of_many_gets_on_and_the_shortest_of_the_rest(plan: Callable[..., Plan]) -> None:
    made = plan(budget=16)
    first, second, third = made.add(100), made.add(60), made.add(30)
    assert made.step() == {first: 16}
    assert made.step() == {second: 8, first: 8}
    assert made.step() == {third: 8, first: 8}
    assert made.until(lambda: answered(third)) == 3
    assert made.until(lambda: answered(first)) < made.until(lambda: answered(second)) + 100


def test_tenants_get_the_same_tokens_of_prompts(plan: Callable[..., Plan]) -> None:
    made = plan(budget=16)
    for _ in range(30):
        made.add(200, answer=1, tenant="many")
    for _ in range(3):
        made.add(2000, answer=1, tenant="few")
    for _ in range(200):
        made.step()
    assert abs(made.used["many"] - made.used["few"]) <= 200


def test_tenants_get_tokens_by_weight(plan: Callable[..., Plan]) -> None:
    made = plan(budget=16, rows=4)
    for _ in range(60):
        made.add(40, answer=20, tenant="gold", weight=3.0)
        made.add(40, answer=20, tenant="tin", weight=1.0)
    made.until(lambda: not (made.scheduler.waiting.tenants() >= {"gold", "tin"}))
    assert made.used["gold"] / made.used["tin"] == pytest.approx(3, rel=0.2)


def test_a_flood_delays_no_other_tenant(plan: Callable[..., Plan]) -> None:
    made = plan(rows=4)
    for _ in range(200):
        made.add(8, answer=8, tenant="flood")
    made.step()
    made.step()
    calm = made.add(8, answer=8, tenant="calm")
    assert made.until(lambda: answered(calm)) <= 8  # the next row is his


def test_long_answers_count_too(plan: Callable[..., Plan]) -> None:
    made = plan(rows=4)
    for _ in range(100):
        made.add(4, answer=200, tenant="talks")
        made.add(4, answer=4, tenant="nods")
    made.until(lambda: "nods" not in made.scheduler.waiting.tenants())
    nods = [each for each in made.made if each.tenant == "nods"]
    talks = [each for each in made.made if each.tenant == "talks" and answered(each)]
    assert all(answered(each) for each in nods[:-4]) and len(talks) <= 12


def test_priority_goes_before_turns(plan: Callable[..., Plan]) -> None:
    made = plan(budget=16, rows=2)
    for _ in range(3):
        late = made.add(16, answer=1, tenant="a", priority=1)
    early = [made.add(16, answer=1, tenant="b", priority=0) for _ in range(3)]
    made.until(lambda: all(answered(each) for each in early))
    assert not answered(late)


def test_as_many_run_as_the_queue_says(plan: Callable[..., Plan]) -> None:
    bands = (Band(below=10, rows=8, ttft_ms=200), Band(rows=40, ttft_ms=400))
    made = plan(bands=bands, budget=512, rows=128)
    for _ in range(9):
        made.add(4, answer=50, batch=True)
    assert len(made.step()) == 8
    for _ in range(60):
        made.add(4, answer=50, batch=True)
    assert len(made.step()) == 40


def test_interactive_ones_never_run_in_a_large_batch(plan: Callable[..., Plan]) -> None:
    made = plan(budget=512)
    batch = [made.add(4, answer=60, batch=True) for _ in range(100)]
    for _ in range(3):
        assert len(made.step()) == 100
    one = made.add(4, answer=5)
    said = sum(len(each.ids) for each in batch)
    for _ in range(5):
        counts = made.step()
        assert counts[one] and len(counts) == 16
    assert sum(len(each.ids) for each in batch) == said + 5 * 15
    assert made.scheduler.queues.preemptions == 0 and all(each.running for each in batch)
    assert len(made.step()) == 100  # the rest goes on where it stopped
    for _ in range(40):
        made.add(4, answer=5)
    for _ in range(8):
        assert len(made.step()) == 16
    made.until(lambda: made.done)


def test_batch_ones_leave_their_blocks_to_interactive_ones(plan: Callable[..., Plan]) -> None:
    made = plan(blocks=40, budget=64)
    batch = [made.add(20, answer=10, batch=True, tenant="night") for _ in range(3)]
    made.step()
    one = made.add(40, answer=4, tenant="day")
    made.until(lambda: answered(one))
    assert made.scheduler.queues.preemptions and batch[0].running
    made.until(lambda: made.done)
    assert all(len(each.ids) == 30 for each in batch)


def test_a_tenant_yields_what_is_beyond_his_share_to_one_who_has_less(plan: Callable[..., Plan]) -> None:
    made = plan(blocks=34, budget=64, tenant_share=0.5)
    greedy = [made.add(16, answer=40, tenant="greedy") for _ in range(3)]
    made.until(lambda: answered(greedy[-1]))
    assert all(each.running for each in greedy)  # as long as nobody else wants any, all is his
    other = made.add(16, answer=4, tenant="modest")
    assert made.until(lambda: answered(other)) <= 2
    assert greedy[0].running and not greedy[2].running
    more = made.add(16, answer=4, tenant="greedy")
    made.add(16, answer=40, tenant="modest")
    made.add(16, answer=40, tenant="modest")
    made.until(lambda: made.done)
    assert len(more.ids) == 20 and all(len(each.ids) == 56 for each in greedy)


def test_even_the_greedy_may_run_one_that_needs_more_than_his_share(plan: Callable[..., Plan]) -> None:
    made = plan(blocks=40, budget=64, tenant_share=0.25)
    large = made.add(60, answer=4, tenant="large")
    for _ in range(5):
        made.add(8, answer=4, tenant="small")
    made.until(lambda: made.done)
    assert len(large.ids) == 64


def test_who_asks_for_less_does_not_overtake_who_waits_for_blocks(plan: Callable[..., Plan]) -> None:
    made = plan(blocks=30, budget=64, tenant_share=1.0)
    made.add(30, answer=20, tenant="a")
    made.step()
    large = made.add(40, answer=4, tenant="b")
    made.step()
    small = [made.add(4, answer=20, tenant=tenant) for tenant in "acd" * 4]
    while not large.running:
        assert not any(each.running for each in small)
        made.step()
    made.until(lambda: made.done)
