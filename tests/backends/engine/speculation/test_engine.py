"""An engine that is told what will be said, rightly, wrongly or absurdly: its answers are those without."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from backends.wire import Grammar, Speculation

if TYPE_CHECKING:
    from tests.backends.engine.conftest import Answer, FakeDrafter, Rig

Make = Callable[..., "Rig"]
MakeDrafter = Callable[..., "FakeDrafter"]
Expected = Callable[..., "Answer"]

PROMPT = [1, 2, 1, 1, 2]
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"max_tokens": 1},
    {"max_tokens": 2},
    {"max_tokens": 61},
    {"ignore_eos": False, "max_tokens": 200},
    {"stop": ("\n", "ba", "aab"), "max_tokens": 60},
    {"stop_token_ids": (5, 20, 30, 40), "max_tokens": 60},
    {"grammar": Grammar("regex", "[abc]{3,12}"), "max_tokens": 30},
    {"grammar": Grammar("regex", "(ab?c)+"), "max_tokens": 30, "ignore_eos": False},
]
WRONG = [set(), {0}, {1}, {2, 5}, set(range(16))]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("wrong", WRONG, ids=str)
@pytest.mark.parametrize("error", [1, 10**6, -(10**9)])
def test_no_answer_changes(
    rig: Make, drafter: MakeDrafter, expected: Expected, sampling: dict[str, Any], wrong: set[int], error: int
) -> None:
    made = rig(drafters=(drafter(wrong, error=error),), block_size=8)
    asked = {"max_tokens": 25, **sampling}
    for seed in range(4):
        answer, right = made.ask(PROMPT, seed=seed, **asked), expected(PROMPT, seed=seed, **asked)
        assert (answer.ids, answer.finish, answer.trim) == (right.ids, right.finish, right.trim)


def test_right_drafts_save_steps_and_wrong_ones_cost_none(rig: Make, drafter: MakeDrafter) -> None:
    steps = {}
    for name, wrong in (("right", set()), ("first", {0}), ("third", {2})):
        made = rig(drafters=(drafter(wrong),), speculation=Speculation(gated=False, max_tokens=4))
        made.ask(PROMPT, 41)
        steps[name] = made.engine.load().steps
    assert steps == {"right": 1 + 8, "first": 1 + 40, "third": 1 + 14}


def test_what_was_rejected_is_not_cached(rig: Make, drafter: MakeDrafter, expected: Expected) -> None:
    """Neither the tokens that were wrong nor what they left behind in blocks that are."""
    made = rig(drafters=(drafter({1, 3}),))
    said = made.ask(PROMPT, 30).ids
    assert made.ask(PROMPT + said, 1).cached == (len(PROMPT) + 29) // 4 * 4
    wrong = [said[0], (said[1] + 1) % 60]
    assert made.ask(PROMPT + wrong, 1).ids == expected(PROMPT + wrong, 1).ids


def test_a_stop_inside_a_run_ends_it_there(rig: Make, drafter: MakeDrafter, expected: Expected) -> None:
    """Also where the limit on length is reached in the same step; and no block is left behind."""
    right = expected(PROMPT, 40, seed=2)
    for length in range(3, 12):
        made = rig(drafters=(drafter(),))
        answer = made.ask(PROMPT, 12, seed=2, stop_token_ids=(right.ids[length - 1],))
        first = right.ids.index(right.ids[length - 1]) + 1
        assert (answer.ids, answer.finish) == (right.ids[:first], "stop")
        assert made.engine.load().generation_tokens == first


def test_signals_come_with_the_tokens_that_stand(rig: Make, drafter: MakeDrafter) -> None:
    made = rig(drafters=(drafter({2}),))
    answer = made.ask(PROMPT, 20, signals=True)
    assert [signal.logprob for signal in answer.signals] == [5.0 + place for place in range(20)]


def test_forced_tokens_are_marked_inside_a_run(rig: Make, drafter: MakeDrafter) -> None:
    grammar = Grammar("regex", "(abc){9}")
    asked: dict[str, Any] = {"signals": True, "grammar": grammar, "ignore_eos": False, "max_tokens": 40}
    plain, drafted = rig().ask(PROMPT, **asked), rig(drafters=(drafter(),)).ask(PROMPT, **asked)
    assert plain.ids == drafted.ids and plain.signals == drafted.signals


def test_all_that_runs_is_charged_and_counted(rig: Make, drafter: MakeDrafter) -> None:
    made = rig(drafters=(drafter({1}),), speculation=Speculation(gated=False, max_tokens=3))
    made.ask(PROMPT, 21)
    load = made.engine.load()
    assert (load.drafts, load.drafted_tokens) == (10, 30 - 2)  # the last one has room for a token only
    assert load.accepted_tokens == 10 and load.accepted_by_position == (10, 0, 0)
    assert load.step_tokens == len(PROMPT) + load.drafts + load.drafted_tokens
    assert load.generation_tokens == 21


def test_where_memory_is_short_nothing_is_drafted(
    rig: Make, drafter: MakeDrafter, expected: Expected
) -> None:
    made = rig(drafters=(drafter(),), kv_blocks=9, token_budget=9, max_sequences=4)
    answers = [made.submit([n, n, n], 20, seed=n) for n in range(4)]
    made.run()
    for n, answer in enumerate(answers):
        assert answer.ids == expected([n, n, n], 20, seed=n).ids
    assert made.engine.load().preemptions > 0
    assert max(sum(len(row.tokens) for row in batch.rows) for batch in made.runner.batches) <= 9


def test_prompts_have_half_of_what_a_step_leaves(rig: Make, drafter: MakeDrafter) -> None:
    made = rig(drafters=(drafter(),), token_budget=10)
    made.submit([1], 60)
    made.step()
    made.submit(list(range(30)), 1)
    made.step()
    counts = sorted(len(row.tokens) for row in made.runner.batches[-1].rows)
    assert counts == [4, 5] or counts == [5, 5]


@pytest.mark.parametrize("when", range(1, 6))
def test_an_abort_and_a_deadline_in_between(rig: Make, drafter: MakeDrafter, when: int) -> None:
    made = rig(drafters=(drafter({3}),))
    late = made.submit(PROMPT, 60, timeout=5.0)
    made.submit(PROMPT, 60, id="gone")
    for _ in range(when):
        made.step()
    made.engine.abort(b"gw", "gone")
    made.now += 10
    made.run()
    assert late.finish == "deadline"


def test_a_failed_step_ends_what_was_in_it(rig: Make, drafter: MakeDrafter, expected: Expected) -> None:
    made = rig(drafters=(drafter(),))
    answer = made.submit(PROMPT, 60)
    for _ in range(3):
        made.step()
    made.runner.failures = [RuntimeError()]
    made.step()
    assert answer.finish == "error"
    assert made.ask(PROMPT, 30).ids == expected(PROMPT, 30).ids


def test_a_border_is_not_crossed_by_a_draft(rig: Make, drafter: MakeDrafter, expected: Expected) -> None:
    """Tokens beyond it need other keys for all that is before them."""
    made = rig(drafters=(drafter(),))
    made.engine._border = 12
    assert made.ask(PROMPT, 30).ids == expected(PROMPT, 30).ids
    for batch in made.runner.batches:
        for row in batch.rows:
            assert row.stretched or row.start + len(row.tokens) <= 12
