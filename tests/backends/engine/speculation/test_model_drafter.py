"""A smaller model that drafts: what it says, what it has read, and that no block is taken for what it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from backends.engine.batch import Batch
from backends.engine.speculation.model_drafter import CATCH_UP, FEW, ModelDrafter
from backends.wire import Grammar, Speculation

if TYPE_CHECKING:
    from tests.backends.engine.conftest import Answer, FakeRunner, Rig

Make = Callable[..., "Rig"]
Expected = Callable[..., "Answer"]
PROMPT = [1, 2, 1, 1, 2]
LONG = [at % 50 for at in range(300)]


class Pair:
    """An engine and its smaller model, which says the same: it keeps the tokens of what it reads in cells of its own,
    and fails where it would read what it has not written."""

    def __init__(
        self, rig: Make, runner: Callable[..., FakeRunner], positions: int = 1024, **config: Any
    ) -> None:
        fields: dict[str, Any] = {"block_size": 4, "kv_blocks": 64, **config}
        self.small = runner(fields["kv_blocks"], fields["block_size"])
        drafter = ModelDrafter(self.small, fields["kv_blocks"], positions)
        self.rig = rig(drafters=(drafter,), **fields)

    @property
    def read(self) -> int:
        """Tokens that the smaller model has run."""
        return sum(len(row.tokens) for batch in self.small.batches for row in batch.rows)


@pytest.fixture
def pair(rig: Make, fake_runner: Callable[..., FakeRunner]) -> Callable[..., Pair]:
    return lambda **fields: Pair(rig, fake_runner, **fields)


def test_it_says_what_the_model_would_with_the_same_noise(
    pair: Callable[..., Pair], expected: Expected
) -> None:
    made = pair(speculation=Speculation(gated=False, max_tokens=4))
    for seed in range(3):
        assert made.rig.ask(PROMPT, 41, seed=seed).ids == expected(PROMPT, 41, seed=seed).ids
    load = made.rig.engine.load()
    assert load.drafted_tokens == load.accepted_tokens == 3 * 32
    assert load.steps == 3 * (1 + 8)


def test_it_runs_nothing_twice(pair: Callable[..., Pair]) -> None:
    """Prompt and answer once each, but for the last drafted token and the one that follows it."""
    made = pair(speculation=Speculation(gated=False, max_tokens=4))
    made.rig.ask(PROMPT, 41)
    assert made.read == len(PROMPT) + 41 - 2


def test_grammars_and_ends_cut_it(pair: Callable[..., Pair], expected: Expected) -> None:
    made = pair()
    for seed in range(4):
        for asked in (
            {"grammar": Grammar("regex", "[abc]{3,12}"), "max_tokens": 30},
            {"stop_token_ids": (5, 20, 30, 40), "max_tokens": 60},
            {"ignore_eos": False, "max_tokens": 100},
        ):
            answer, right = made.rig.ask(PROMPT, seed=seed, **asked), expected(PROMPT, seed=seed, **asked)
            assert (answer.ids, answer.finish) == (right.ids, right.finish)
    assert made.rig.engine.load().accepted_tokens > 20


def test_a_long_prompt_is_caught_up_with_a_little_in_each_step(pair: Callable[..., Pair]) -> None:
    made = pair(kv_blocks=128, token_budget=512)
    made.rig.submit(LONG, 40)
    made.rig.step()
    assert made.read == 0  # never before a first token
    for step in range(1, 4):
        made.rig.step()
        assert made.read == step * CATCH_UP and made.rig.engine.load().drafts == 0
    made.rig.run()
    assert made.rig.engine.load().drafts > 0
    assert max(len(row.tokens) for row in made.rig.runner.batches[-1].rows) > 1


def test_nobody_waits_for_it(pair: Callable[..., Pair]) -> None:
    """While another prompt is read nothing is made up for."""
    made = pair(kv_blocks=256, token_budget=32)
    made.rig.submit(LONG, 200)
    while not made.rig.answers[b"gw", "g0"].ids:
        made.rig.step()
    made.rig.submit([7, *LONG], 10)
    before = made.read
    while not made.rig.answers[b"gw", "g1"].ids:
        made.rig.step()
        assert made.read == before
    made.rig.run()
    assert made.read > before


def test_a_prefix_in_the_cache_serves_both(pair: Callable[..., Pair]) -> None:
    made = pair(kv_blocks=256, token_budget=512)
    made.rig.ask(LONG, 40)
    before = made.read
    again = made.rig.ask([*LONG, 9], 20)
    assert again.cached == len(LONG)
    assert made.read - before < 2 * FEW + 20


def test_what_another_wrote_into_a_block_is_never_taken_for_its_own(
    pair: Callable[..., Pair], expected: Expected
) -> None:
    """Few blocks, many prompts, preemption: they change hands all the time."""
    made = pair(kv_blocks=16, max_sequences=4, block_size=4)
    for turn in range(30):
        answers = [made.rig.submit([turn % 7, n, n], 24, seed=n) for n in range(4)]
        made.rig.run()
        for n, answer in enumerate(answers):
            assert answer.ids == expected([turn % 7, n, n], 24, seed=n).ids
    load = made.rig.engine.load()
    assert load.preemptions > 0 and load.accepted_tokens > 100
    assert load.accepted_tokens == load.drafted_tokens, "it is the same model: it read something else"


def test_beyond_its_positions_it_is_silent(pair: Callable[..., Pair], expected: Expected) -> None:
    made = pair(positions=20)
    assert made.rig.ask(PROMPT, 60).ids == expected(PROMPT, 60).ids
    assert all(row.start + len(row.tokens) <= 20 for batch in made.small.batches for row in batch.rows)


def test_one_that_fails_is_never_asked_again(pair: Callable[..., Pair], expected: Expected) -> None:
    made = pair()
    for failing in range(1, 6):
        made = pair()
        answer = made.rig.submit(PROMPT, 60)
        for _ in range(failing):
            made.rig.step()
        made.small.failures = [RuntimeError("ordered")]
        made.rig.run()
        batches: list[Batch] = list(made.small.batches)
        assert answer.ids == expected(PROMPT, 60).ids
        assert made.rig.ask(PROMPT, 20).ids == expected(PROMPT, 20).ids
        assert made.small.batches == batches
