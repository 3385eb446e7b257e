"""Steps of a made-up machine teach the model what they cost, and the budget follows."""

import random

import pytest

from backends.engine.pace import FIRST_CHUNK, CostModel, StepBudget, Work

DECODING = Work.of([(300, 1)] * 8)


def seconds(work: Work) -> float:
    """Such a machine: 10 ms, 0.5 ms a token, 0.2 ms a thousand pairs, and 1 µs a token before a chunk."""
    return 0.01 + 0.0005 * work.tokens + 2e-7 * work.pairs + 1e-6 * work.context


def steps(seed: int, count: int) -> list[Work]:
    draw = random.Random(seed)
    made = []
    for number in range(count):
        spans = [(draw.randint(1, 4000), 1) for _ in range(draw.randint(1, 8))]
        if number % 2:
            spans.append((draw.randint(0, 6000), draw.randint(2, 128)))
        made.append(Work.of(spans))
    return made


def taught(slower: float = 1.0, noise: float = 0.0, count: int = 200) -> CostModel:
    model, draw = CostModel(), random.Random(5)
    for work in steps(1, count):
        model.learn(work, seconds(work) * slower * draw.uniform(1 - noise, 1 + noise))
    return model


def test_it_learns_what_steps_cost() -> None:
    model = taught()
    for work in steps(2, 50):
        assert model.predict(work) == pytest.approx(seconds(work), rel=0.02)
    assert model.error < 0.01


def test_noise_and_outliers_do_not_mislead_it() -> None:
    model = taught(noise=0.2)
    model.learn(DECODING, 60.0)  # the machine slept
    for work in steps(2, 50):
        assert model.predict(work) == pytest.approx(seconds(work), rel=0.5)


def test_it_follows_a_machine_that_becomes_slower() -> None:
    model = taught()
    for _ in range(30):
        model.learn(DECODING, 2 * seconds(DECODING))
    chunk = Work.of([(5000, 64)])
    assert model.predict(DECODING) == pytest.approx(2 * seconds(DECODING), rel=0.1)
    assert (model.predict(chunk) or 0) > 1.5 * seconds(chunk)  # though none was seen since


def test_what_long_decoding_leaves_of_what_is_known_of_chunks() -> None:
    model = taught()
    for _ in range(5000):
        model.learn(DECODING, seconds(DECODING))
    chunk = Work.of([(5000, 64)])
    assert model.predict(chunk) == pytest.approx(seconds(chunk), rel=0.1)


def test_it_foretells_nothing_unseen_and_learns_nothing_from_a_clock_that_stands() -> None:
    model = CostModel()
    for _ in range(100):
        model.learn(DECODING, 0.0)
    assert model.predict(DECODING) is None and model.largest == 0
    assert StepBudget(model, DECODING, 500, 0.01, stretch=True).affords(100, 9000) == 500


def test_only_chunks_read_a_context_of_their_own() -> None:
    assert Work.of([(100, 1), (50, 2), (200, 64)]).context == 250


def test_nothing_costs_less_than_nothing() -> None:
    model, draw = CostModel(), random.Random(3)
    for work in steps(4, 60):
        model.learn(work, draw.uniform(0.001, 0.1))
        predicted = [model.predict(Work.of([(start, 64)])) for start in (0, 1000, 50_000)]
        assert predicted == sorted(predicted, key=lambda each: each or 0)
        assert all(each is None or each > 0 for each in predicted)


def test_a_step_with_prompts_takes_twice_as_long_as_without() -> None:
    model = taught()
    counts = []
    for start in (0, 1000, 6000):
        budget = StepBudget(model, DECODING, 500, 9.9, stretch=True)
        counts.append(count := budget.affords(start, 10_000))
        step = seconds(DECODING.and_span(start, count))
        assert 1.8 * seconds(DECODING) < step <= 2.05 * seconds(DECODING)
    assert counts == sorted(counts, reverse=True) and counts[0] > 2 * counts[2]


def test_a_step_has_the_time_it_is_given() -> None:
    model = taught()
    for decoding, stretch in [(Work(), True), (Work(), False), (DECODING, False)]:
        budget = StepBudget(model, decoding, 500, 0.06, stretch=stretch)
        count = budget.affords(2000, 500)
        assert seconds(decoding.and_span(2000, count)) == pytest.approx(0.06, rel=0.05)


def test_weights_are_not_read_for_a_few_tokens_where_nobody_waits_for_the_next_one() -> None:
    budget = StepBudget(taught(slower=100), Work(), 500, 0.06, stretch=True)
    assert budget.affords(0, 500) == pytest.approx(3 * 0.01 / 0.0005, rel=0.1)


def test_what_one_prompt_takes_is_gone_for_the_next() -> None:
    budget = StepBudget(taught(), DECODING, 500, 9.9, stretch=True)
    whole = budget.affords(0, 500)
    budget.take(0, whole // 2)
    assert whole - whole // 2 - 2 <= budget.affords(0, 500) <= whole - whole // 2
    budget.take(0, budget.affords(0, 500))
    assert budget.affords(0, 500) == 0


def test_a_prompt_always_gets_on() -> None:
    """However little time there is, a step without progress would be repeated for ever."""
    budget = StepBudget(taught(), DECODING, 500, 1e-6, stretch=False)
    assert budget.affords(10**9, 500) == 1
    budget.take(10**9, 1)
    assert budget.affords(0, 500) == 0


def test_beside_answers_chunks_grow_only_as_far_as_was_tried() -> None:
    model = CostModel()
    for _ in range(10):
        model.learn(DECODING, 0.01)  # not a word of what tokens cost
    assert StepBudget(model, DECODING, 500, 9.9, stretch=False).tokens == FIRST_CHUNK
    model.learn(DECODING.and_span(0, 60), 0.02)
    assert StepBudget(model, DECODING, 500, 9.9, stretch=False).tokens == 2 * 68
    assert StepBudget(model, Work(), 500, 9.9, stretch=False).tokens == 500
