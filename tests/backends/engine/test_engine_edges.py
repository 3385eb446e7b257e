"""What an engine refuses, survives and tells about itself, and how it keeps house with its blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from backends.wire import Sampling, Submit
from prefixcache.affinity import block_keys

if TYPE_CHECKING:
    from tests.backends.engine.conftest import Answer, Rig

Make = Callable[..., "Rig"]
Expected = Callable[..., "Answer"]

LONG = list(range(1, 30))


def submission(prompt: list[int], **sampling: Any) -> Submit:
    return Submit(id="g", prompt=prompt, sampling=Sampling(**{"max_tokens": 4, **sampling}))


# --- refusals


def test_a_refused_submission_changes_nothing(rig: Make) -> None:
    engine = rig()
    assert engine.refusal(submission([])).code == "invalid"
    assert engine.refusal(submission([1], top_p=math.nan)).message.startswith("sampling.top_p:")
    assert engine.refusal(submission([1] * 256)).code == "context_length_exceeded"
    assert not engine.engine.has_work
    assert engine.submit([1] * 255).finish is None


def test_ids_of_the_padded_vocabulary_are_fine(rig: Make) -> None:
    engine = rig()
    assert engine.refusal(submission([64])).code == "invalid"
    assert engine.ask([63]).finish == "length"


def test_a_full_queue_is_overloaded(rig: Make) -> None:
    """Who will run in the next step does not count as waiting, though nobody has started yet."""
    engine = rig(max_sequences=2, max_waiting=2)
    answers = [engine.submit(LONG) for _ in range(4)]
    assert engine.refusal(submission(LONG)).code == "overloaded"
    engine.run()
    answers.append(engine.submit(LONG))
    engine.run()
    assert all(answer.finish == "length" for answer in answers)


def test_a_queue_with_too_many_tokens_is_overloaded(rig: Make) -> None:
    engine = rig(max_sequences=1, max_waiting_tokens=2 * len(LONG))
    for _ in range(2):
        engine.submit(LONG)
    refused = engine.refusal(submission(LONG + [1]))
    assert refused.code == "overloaded" and str(2 * len(LONG)) in refused.message
    engine.run()
    huge = engine.submit(LONG * 3)  # nobody waits, so it is welcome
    engine.run()
    assert huge.finish == "length"


def test_who_is_refused_is_told_when_to_come_again(rig: Make) -> None:
    engine = rig(max_sequences=1, max_waiting=20)
    for number in range(21):
        engine.submit([number + 1], max_tokens=2)
    assert engine.refusal(submission(LONG)).retry_after == 1.0  # nothing has moved yet
    for _ in range(10):
        engine.now += 2.0
        engine.step()
    for number in range(5):
        engine.submit([number + 1], max_tokens=2)
    refused = engine.refusal(submission(LONG))
    # One starts every 4 seconds, and half of 20 should.
    assert refused.retry_after is not None and 30 <= refused.retry_after <= 50


def test_an_id_in_use_is_refused_and_free_again_afterwards(rig: Make) -> None:
    engine = rig()
    answer = engine.submit(LONG, id="g")
    assert engine.refusal(submission(LONG)).message.startswith("id:")
    engine.run()
    assert answer.finish == "length"
    assert engine.engine.submit(b"gw", submission(LONG)) is None


@pytest.mark.parametrize(
    "config",
    [{"max_model_len": 0}, {"max_model_len": 1}, {"kv_blocks": 1, "block_size": 1}, {"block_size": 0}],
)
def test_an_engine_without_room_is_not_built(rig: Make, config: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="max_model_len|block_size"):
        rig(**config)


# --- a runner that fails


def test_a_failing_step_ends_its_sequences_and_no_others(
    rig: Make, expected: Expected, caplog: pytest.LogCaptureFixture
) -> None:
    engine = rig(max_sequences=2, token_budget=60)
    engine.runner.failures = [RuntimeError("the device is on fire")]
    answers = [engine.submit(LONG[n:]) for n in range(4)]
    engine.step()
    assert [answer.finish for answer in answers] == ["error", "error", None, None]
    assert answers[0].last is not None and "RuntimeError" in str(answers[0].last.error)
    assert "the device is on fire" in caplog.text
    engine.run()
    assert [answer.ids for answer in answers[2:]] == [expected(LONG[n:]).ids for n in (2, 3)]


def test_nothing_that_a_failing_step_wrote_is_cached(rig: Make, expected: Expected) -> None:
    engine = rig(token_budget=8)
    engine.submit(LONG, id="first")
    engine.step()
    engine.runner.failures = [RuntimeError()]
    engine.step()
    assert engine.answers[b"gw", "first"].finish == "error"
    engine.idle()
    again = engine.ask(LONG)
    assert again.cached == 8
    assert again.ids == expected(LONG).ids


def test_a_failed_answer_is_not_cached_either(rig: Make, expected: Expected) -> None:
    engine = rig()
    answer = engine.submit(LONG[:5], 50)
    for _ in range(20):
        engine.step()
    engine.runner.failures = [RuntimeError()]
    engine.step()
    assert answer.finish == "error"
    assert answer.ids == expected(LONG[:5], 20).ids
    assert engine.ask(LONG[:5] + answer.ids).cached == 4


@pytest.mark.parametrize("answer", [[], [[]], [[64]], [[-1]], [[5], [5]], [[5, 5]]], ids=str)
def test_an_impossible_answer_of_the_runner_is_a_failure(
    rig: Make, expected: Expected, answer: list[list[int]]
) -> None:
    engine = rig()
    engine.runner.answers = [answer]
    assert engine.ask(LONG).finish == "error"
    assert engine.ask(LONG).ids == expected(LONG).ids


# --- what it tells about itself


def test_timings_are_on_the_engines_clock(rig: Make) -> None:
    engine = rig(token_budget=20)
    answer = engine.submit(LONG, 2)
    for _ in range(3):
        engine.now += 1
        engine.step()
    assert answer.last is not None and answer.last.timings is not None
    timings = answer.last.timings
    assert (timings.arrived, timings.scheduled) == (1000.0, 1001.0)
    assert (timings.first_token, timings.finished) == (1002.0, 1003.0)


def test_cached_is_what_was_found_at_first_even_after_preemption(rig: Make) -> None:
    engine = rig(kv_blocks=10)
    answers = [engine.submit([n] * 10, 25) for n in (1, 2, 3)]
    engine.run()
    load = engine.engine.load()
    assert load.preemptions > 0
    assert [answer.cached for answer in answers] == [0, 0, 0]
    assert (load.prompt_tokens, load.cached_tokens) == (30, 0)
    assert load.prefix_hits > 0
    assert load.prefix_queries > load.prompt_tokens


def test_load_counts(rig: Make) -> None:
    engine = rig(token_budget=20)
    for _ in range(2):
        engine.ask(LONG, 3)
    load = engine.engine.load()
    assert (load.prompt_tokens, load.cached_tokens, load.generation_tokens) == (58, 28, 6)
    assert (load.prefix_queries, load.prefix_hits) == (58, 28)
    assert (load.steps, load.step_rows, load.step_tokens) == (7, 7, 29 + 2 + 1 + 2)
    assert (load.blocks_total, load.blocks_free, load.blocks_cached) == (64, 57, 7)
    assert load.finished == {"length": 2}
    assert (load.engine, load.incarnation) == ("e/0", "")


def test_cache_changes_are_chained_keys_and_add_up(rig: Make) -> None:
    engine = rig(kv_blocks=12)
    known: set[bytes] = set()
    for prompt in [LONG, *([n] * 5 + LONG[n:] for n in range(20))]:
        engine.submit(prompt, 10)
        while engine.engine.has_work:
            engine.step()
            stored, evicted = engine.engine.cache_changes()
            assert not set(stored) & set(evicted)
            known = (known - set(evicted)) | set(stored)
            assert known == set(engine.engine.cache_keys())
        assert known.issuperset(block_keys(b"", prompt, 4))
    assert engine.engine.cache_changes() == ([], [])


def test_prompt_blocks_are_told_at_once_and_those_of_the_answer_at_its_end(
    rig: Make, expected: Expected
) -> None:
    engine = rig()
    engine.submit(LONG, 20)
    engine.step()
    assert engine.engine.cache_changes() == (block_keys(b"", LONG, 4), [])
    for _ in range(18):
        engine.step()
        assert engine.engine.cache_changes() == ([], [])
    engine.run()
    answer = expected(LONG, 20).ids[:-1]  # the last token is never run
    assert engine.engine.cache_changes() == (block_keys(b"", LONG + answer, 4)[7:], [])


# --- memory


def test_two_that_do_not_fit_together_both_end(rig: Make, expected: Expected) -> None:
    """vllm#45388: each held half of the blocks, and neither could go on."""
    engine = rig(kv_blocks=12, token_budget=8)
    asked = [([n] * 30, engine.submit([n] * 30, 16)) for n in (1, 2)]
    engine.run(limit=200)
    for prompt, answer in asked:
        assert answer.ids == expected(prompt, 16).ids


def test_preemption_does_not_thrash(rig: Make) -> None:
    """vllm#25538: in a pool much too small, most tokens must still be computed once."""
    engine = rig(kv_blocks=24, max_sequences=16)
    for n in range(16):
        engine.submit([n] * 8, 40)
    engine.run()
    load = engine.engine.load()
    assert load.preemptions > 0
    assert load.step_tokens < 1.5 * 16 * 47


@pytest.mark.parametrize(("share", "kept"), [(0.5, 28), (1.0, 0)])
def test_a_tenant_cannot_evict_what_another_keeps_within_his_share(
    rig: Make, share: float, kept: int
) -> None:
    engine = rig(kv_blocks=32, tenant_share=share)
    engine.ask(LONG, 2, tenant="modest", salt=b"m")
    for start in range(20):
        engine.ask([start, *LONG], 2, tenant="greedy", salt=b"g")
    assert engine.ask(LONG, 2, tenant="modest", salt=b"m").cached == kept


@pytest.mark.parametrize(("share", "kept"), [(0.3, 28), (1.0, 0)])
def test_a_session_cannot_evict_what_its_tenants_others_keep(rig: Make, share: float, kept: int) -> None:
    engine = rig(kv_blocks=32, session_share=share)
    engine.ask(LONG, 2, tenant="t", session="quiet")
    for start in range(20):
        engine.ask([start + 1, start, *LONG], 2, tenant="t", session="busy")
    assert engine.ask(LONG, 2, tenant="t", session="quiet").cached == kept


def test_tenants_who_all_need_more_than_a_share_do_not_chase_one_another_away(rig: Make) -> None:
    """One block more than a share, with that for the answer: whoever waited seemed to need less than who ran."""
    made = rig(kv_blocks=6, block_size=4, token_budget=1, tenant_share=0.5)
    answers = [made.submit([number] * 11, max_tokens=8, tenant=f"tenant {number}") for number in (1, 2)]
    made.run(limit=200)
    assert [len(answer.ids) for answer in answers] == [8, 8]
    assert made.engine.load().preemptions < 4
