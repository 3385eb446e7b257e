"""The engine over a runner that answers from what it reads through the blocks: a wrong table is a wrong answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.backends.engine.conftest import Answer, Rig

Make = Callable[..., "Rig"]
Expected = Callable[..., "Answer"]

LONG = list(range(1, 30))


def prompts(count: int, seed: int = 1) -> list[list[int]]:
    """Of 1 to 30 tokens, many with a common beginning."""
    draw = random.Random(seed)
    starts = [[draw.randrange(60) for _ in range(12)] for _ in range(3)]
    return [
        draw.choice(starts)[: draw.randint(0, 12)] + [draw.randrange(60) for _ in range(draw.randint(1, 18))]
        for _ in range(count)
    ]


# --- the same answer, whatever happens around it


def test_alone(rig: Make, expected: Expected) -> None:
    engine = rig()
    for prompt in prompts(20):
        answer = engine.ask(prompt)
        assert (answer.ids, answer.finish) == (expected(prompt).ids, "length")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"token_budget": 7},
        {"token_budget": 1},
        {"max_sequences": 1},
        {"block_size": 1, "kv_blocks": 200},
        {"kv_blocks": 16},
        {"kv_blocks": 11, "token_budget": 9},
        {"paced": True},
        {"paced": True, "kv_blocks": 11, "step_budget_ms": 20},
    ],
    ids=str,
)
def test_among_others_chunked_cached_and_preempted(
    rig: Make, expected: Expected, config: dict[str, int]
) -> None:
    engine = rig(**config)
    asked = [(prompt, engine.submit(prompt, 12)) for prompt in prompts(30)]
    engine.run()
    for prompt, answer in asked:
        assert (answer.ids, answer.finish) == (expected(prompt, 12).ids, "length")


def test_beside_answers_a_long_prompt_runs_in_chunks_that_take_no_longer_than_a_step(rig: Make) -> None:
    engine = rig(paced=True, kv_blocks=512, token_budget=512)
    streams = [engine.submit([n + 1] * 4, 300) for n in range(6)]
    for _ in range(20):
        engine.step()
    long = engine.submit(list(range(1, 51)) * 10, 4)
    took = []
    while not long.ids:
        before = engine.runner.seconds
        engine.step()
        took.append(engine.runner.seconds - before)
    usual = 0.01 + 0.002 * 6
    assert max(took[3:]) <= 2.1 * usual and 1.7 * usual < sum(took[3:-1]) / len(took[3:-1])
    assert all(len(each.ids) > len(took) for each in streams)
    assert 0 < engine.engine.load().step_error < 0.5
    assert engine.engine.load().step_budget == pytest.approx(2 * usual, rel=0.1)


def test_preempted_with_an_answer_begun(rig: Make, expected: Expected) -> None:
    """vllm#16832, vllm-ascend#11334: the resumed sequence must compute its answer so far again, not its prompt only."""
    engine = rig(kv_blocks=10)
    asked = [([n] * 10, engine.submit([n] * 10, 25)) for n in (1, 2, 3)]
    engine.run()
    assert engine.engine.load().preemptions > 0
    for prompt, answer in asked:
        assert answer.ids == expected(prompt, 25).ids


@pytest.mark.parametrize("length", [15, 16, 17])
def test_the_same_prompt_again(rig: Make, expected: Expected, length: int) -> None:
    """tenstorrent/vllm#415: a hit must go on at the right place; a prompt of whole blocks is the edge."""
    engine, prompt = rig(), LONG[:length]
    for cached in (0, (length - 1) // 4 * 4):
        answer = engine.ask(prompt)
        assert answer.ids == expected(prompt).ids
        assert answer.cached == cached


def test_a_conversation_finds_its_own_answer_in_the_cache(rig: Make, expected: Expected) -> None:
    engine = rig()
    first = engine.ask(LONG[:10], 12)
    prompt = LONG[:10] + first.ids + [7]
    second = engine.ask(prompt)
    assert second.cached == 20  # the last token of an answer is never run
    assert second.ids == expected(prompt).ids


def test_equal_prompts_at_once_share_their_blocks(rig: Make, expected: Expected) -> None:
    engine = rig(token_budget=29)
    answers = [engine.submit(LONG) for _ in range(4)]
    engine.run()
    assert [answer.ids for answer in answers] == [expected(LONG).ids] * 4
    assert [answer.cached for answer in answers] == [0, 28, 28, 28]


def test_equal_prompts_in_one_step_leave_one_copy(rig: Make, expected: Expected) -> None:
    engine = rig(token_budget=64)
    answers = [engine.submit(LONG[:17]) for _ in range(3)]
    engine.step()
    load = engine.engine.load()
    assert load.blocks_total - load.blocks_free == 4 + 3
    engine.run()
    assert [answer.ids for answer in answers] == [expected(LONG[:17]).ids] * 3


def test_an_abort_in_the_middle_of_a_prompt_leaves_a_sound_prefix(rig: Make, expected: Expected) -> None:
    """sglang#38319: a chunk in the tree, then the abort gave its blocks away: a wrong prefix for ever."""
    engine = rig(token_budget=10)
    engine.submit(LONG, id="first")
    engine.step()
    engine.engine.abort(b"gw", "first")
    engine.idle()
    for prompt in prompts(10):
        engine.submit(prompt)
    engine.run()
    again = engine.ask(LONG)
    assert again.ids == expected(LONG).ids
    assert again.cached == 8


def test_other_salts_find_nothing(rig: Make, expected: Expected) -> None:
    engine = rig()
    assert [engine.ask(LONG, salt=salt).cached for salt in (b"a", b"b", b"a", b"")] == [0, 0, 28, 0]
    assert engine.ask(LONG, salt=b"b").ids == expected(LONG).ids


def test_seeds_reach_the_runner(rig: Make, expected: Expected) -> None:
    engine = rig()
    answers = {seed: engine.submit(LONG, seed=seed) for seed in (0, 1, 2)}
    engine.run()
    for seed, answer in answers.items():
        assert answer.ids == expected(LONG, seed=seed).ids


# --- ends


def test_eos_ends_the_answer_is_told_and_counts_and_has_no_text(rig: Make, expected: Expected) -> None:
    engine = rig()
    for prompt in prompts(40):
        answer = engine.ask(prompt, 60, ignore_eos=False)
        right = expected(prompt, 60, ignore_eos=False)
        assert (answer.ids, answer.finish, answer.text) == (right.ids, right.finish, right.text)
        assert 0 not in answer.ids[:-1]
    assert engine.engine.load().finished.keys() == {"stop", "length"}


def test_a_stop_token_with_text_is_trimmed(rig: Make, expected: Expected) -> None:
    ids = expected(LONG, 8).ids
    answer = rig().ask(LONG, 8, stop_token_ids=(ids[3],))
    right = expected(LONG, 8, stop_token_ids=(ids[3],))
    assert (answer.ids, answer.finish, answer.trim) == (right.ids, "stop", right.trim)
    assert answer.trim > 0


def test_no_part_of_a_stop_string_is_told_before_it_is_decided(rig: Make, expected: Expected) -> None:
    """vllm#3574. And what was held back is told in the end, with what is to be trimmed."""
    text = expected(LONG, 12).text
    stop = text[3:9].decode("latin-1")
    engine = rig()
    answer = engine.submit(LONG, 12, stop=(stop,))
    told = b""
    while answer.finish is None:
        told = answer.text
        engine.step()
    assert text.startswith(told) and len(told) <= 3
    right = expected(LONG, 12, stop=(stop,))
    assert (answer.ids, answer.finish, answer.text) == (right.ids, "stop", text[:3])


def test_what_is_held_back_comes_with_the_end(rig: Make, expected: Expected) -> None:
    right = expected(LONG, 6)
    stop = right.text[-1:].decode("latin-1") + "never"
    answer = rig().ask(LONG, 6, stop=(stop,))
    assert (answer.ids, answer.finish, answer.trim) == (right.ids, "length", 0)


def test_many_stops_over_many_prompts(rig: Make, expected: Expected) -> None:
    engine = rig()
    stops = ("ab", "aba", "ca", "\n\x0b", "ď")
    asked = [(prompt, engine.submit(prompt, 40, stop=stops)) for prompt in prompts(40)]
    engine.run()
    for prompt, answer in asked:
        right = expected(prompt, 40, stop=stops)
        assert (answer.ids, answer.finish, answer.text) == (right.ids, right.finish, right.text)
    assert {answer.finish for _, answer in asked} == {"stop", "length"}


def test_an_answer_ends_with_the_context(rig: Make, expected: Expected) -> None:
    engine = rig(max_model_len=32)
    answer = engine.ask(LONG, 1000)
    assert (answer.ids, answer.finish) == (expected(LONG, 3).ids, "length")


def test_one_sequence_may_fill_all_blocks(rig: Make, expected: Expected) -> None:
    engine = rig(kv_blocks=8)
    assert engine.engine.context_length == 32
    assert engine.ask(LONG, 1000).ids == expected(LONG, 3).ids


def test_a_deadline_ends_running_and_waiting_ones(rig: Make, expected: Expected) -> None:
    engine = rig(max_sequences=1)
    running = engine.submit(LONG, 50, timeout=5.0)
    waiting = engine.submit(LONG, 50, timeout=4.0)
    engine.step()
    engine.now += 4.5
    engine.step()
    assert waiting.finish == "deadline" and waiting.ids == []
    assert running.finish is None
    engine.now += 1
    engine.step()
    assert running.finish == "deadline"
    assert running.ids == expected(LONG, 2).ids
    assert not engine.engine.has_work
    engine.idle()


def test_a_timeout_of_zero_never_runs(rig: Make) -> None:
    engine = rig()
    assert engine.ask(LONG, timeout=0.0).finish == "deadline"
    assert engine.runner.batches == []


def test_an_aborted_generation_is_silent_and_gives_all_blocks_back(rig: Make) -> None:
    """ROCm/ATOM#1562, sglang#36475: a client that is gone must not keep a generation running."""
    engine = rig(max_sequences=1)
    running, waiting = engine.submit(LONG, id="r"), engine.submit(LONG, id="w")
    engine.step()
    for id in ("w", "r", "r", "unknown"):
        engine.engine.abort(b"gw", id)
        engine.engine.check()
    assert not engine.engine.has_work
    engine.idle()
    assert engine.engine.step() == []
    assert running.finish is waiting.finish is None
    assert engine.engine.load().finished == {"abort": 2}


def test_a_sender_that_is_gone_loses_its_generations_only(rig: Make, expected: Expected) -> None:
    engine = rig()
    gone = engine.submit(LONG, sender=b"gone", id="same")
    stays = engine.submit(LONG, sender=b"stays", id="same")
    engine.step()
    engine.engine.abort_sender(b"gone")
    engine.run()
    assert gone.finish is None
    assert stays.ids == expected(LONG).ids
