"""When an engine drafts at all: by batch, by task, by what it has measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backends.engine.speculation.account import ALLOWANCE, OPENING
from backends.engine.speculation.speculator import READING, STALE
from backends.wire import Speculation

if TYPE_CHECKING:
    from tests.backends.engine.conftest import Answer, FakeDrafter, Rig

Make = Callable[..., "Rig"]
MakeDrafter = Callable[..., "FakeDrafter"]
PROMPT = [1, 2, 1, 1, 2]


def drafted(made: Rig) -> list[int]:
    """By step, the tokens of all drafts."""
    return [sum(len(row.draft) for row in batch.rows) for batch in made.runner.batches]


def gated(**fields: Any) -> dict[str, Any]:
    """An engine whose steps take 10 ms and 2 for each token: eight drafted tokens cost twice a step without."""
    return {"paced": True, "speculation": Speculation(**fields), "block_size": 16}


def test_it_climbs_where_drafts_are_right_and_measures_what_else_would_cost(
    rig: Make, drafter: MakeDrafter
) -> None:
    made = rig(drafters=(drafter(),), **gated())
    answer = made.ask(PROMPT, 400, task="code")
    counts = drafted(made)
    [gate] = made.engine.load().gates
    assert (gate.method, gate.task, gate.tokens, gate.reason) == ("ngram", "code", 8, "pays")
    assert gate.acceptance > 0.9 and 2 < gate.gain < 9 / (28 / 12)
    assert counts[0] == 0 and max(counts) == 8 and len(answer.ids) == 400
    since = made.runner.batches[counts.index(8) :]
    plain = [at for at, batch in enumerate(since[:-1]) if not batch.rows[0].draft]
    assert plain and plain[0] <= STALE + 1


def test_it_stays_shut_where_they_are_wrong(rig: Make, drafter: MakeDrafter) -> None:
    made = rig(drafters=(drafter({0}),), **gated())
    made.ask(PROMPT, 600)
    counts = drafted(made)
    assert sum(map(bool, counts)) < 12
    [gate] = made.engine.load().gates
    assert (gate.tokens, gate.reason, gate.gain) == (0, "unprofitable", 1.0)


def test_the_time_of_drafts_is_never_taken_for_that_of_a_step_without(
    rig: Make, drafter: MakeDrafter
) -> None:
    """Two of three tokens are accepted, for five times what a step takes: however often that is seen, it is a loss."""
    slow = drafter({2}, seconds=0.016)
    made = rig(drafters=(slow,), **gated(max_tokens=3))
    slow.device = made.runner
    for _ in range(8):
        made.ask(PROMPT, 150, task="code")
    [gate] = made.engine.load().gates
    assert gate.gain == 1.0 and gate.reason == "unprofitable"
    assert slow.drafted < 60


def test_tasks_do_not_learn_from_each_other(rig: Make, drafter: MakeDrafter) -> None:
    made = rig(drafters=(drafter(),), **gated())
    made.ask(PROMPT, 100, task="code")
    counts = len(drafted(made))
    made.ask(PROMPT, 8, task="chat")
    assert drafted(made)[counts + 1] == 2  # a probe
    made.ask(PROMPT, 8, task="code")
    assert {gate.task for gate in made.engine.load().gates} == {"code", "chat"}


def test_what_is_read_before_a_draft_is_paid_for(rig: Make, drafter: MakeDrafter) -> None:
    """Little is at once; much has to be saved up for, and no answer is short of more steps than that takes."""
    little, much = drafter(behind=100), drafter(behind=1000)
    for reader in (little, much):
        made = rig(drafters=(reader,), **gated())
        for _ in range(10):
            made.ask(PROMPT, 60)
        steps = made.engine.load().steps
        saved = made.engine.load().accepted_tokens
        assert sum(reader.read.values()) * READING <= OPENING + ALLOWANCE * steps + saved
    assert little.drafted > 100 and not much.drafted


def test_an_open_gate_has_nothing_read_for_an_answer_that_soon_ends(rig: Make, drafter: MakeDrafter) -> None:
    reader = drafter()
    made = rig(drafters=(reader,), **gated())
    made.ask(PROMPT, 200)
    reader.behind = 300
    short = made.submit(PROMPT, 5)
    made.run()
    assert not reader.read and len(short.ids) == 5
    made.ask(PROMPT, 200)
    assert sum(reader.read.values()) == 300


def test_it_stands_back_in_a_large_batch(rig: Make, drafter: MakeDrafter) -> None:
    made = rig(drafters=(drafter(),), **gated(max_sequences=2))
    for seed in range(3):
        made.submit(PROMPT, 10 + 30 * seed, seed=seed)
    made.run()
    rows = [len(batch.rows) for batch in made.runner.batches]
    assert all(not count for count, width in zip(drafted(made), rows, strict=True) if width > 2)
    assert any(drafted(made))


def test_a_crowd_is_the_reason_that_is_told(rig: Make, drafter: MakeDrafter) -> None:
    made = rig(drafters=(drafter(),), **gated(max_sequences=1))
    made.ask(PROMPT, 100)
    made.submit(PROMPT, 30)
    made.submit(PROMPT, 30)
    for _ in range(5):
        made.step()
    [gate] = made.engine.load().gates
    assert (gate.tokens, gate.reason) == (0, "crowded")


def test_the_second_drafter_is_asked_where_the_first_has_nothing_to_say(
    rig: Make, drafter: MakeDrafter
) -> None:
    second = drafter(method="draft")
    made = rig(drafters=(drafter(mute=True), second), speculation=Speculation(gated=False))
    made.ask(PROMPT, 30)
    assert made.engine.load().drafts > 2
    assert second.drafted > 20


def test_without_drafters_nothing_is_told(rig: Make) -> None:
    made = rig()
    made.ask(PROMPT, 10)
    load = made.engine.load()
    assert (load.drafts, load.accepted_by_position, load.gates) == (0, (), ())


def test_a_draft_lasts_for_one_step(rig: Make, drafter: MakeDrafter, expected: Callable[..., Answer]) -> None:
    """Those that are preempted, paused or cut short in between have none later that nobody has just made."""
    made = rig(
        drafters=(drafter(),), block_size=1, kv_blocks=60, token_budget=7, interactive_sequences=2,
        tenant_share=0.2, max_sequences=5,
    )  # fmt: skip
    asked = []
    for turn in range(24):
        traffic = "batch" if turn % 3 else "interactive"
        prompt = [turn % 5, 1, 2]
        asked.append(
            (prompt, turn % 4, made.submit(prompt, 20, seed=turn % 4, traffic=traffic, tenant=f"{turn % 2}"))
        )
        for _ in range(turn % 3):
            made.step()
            running = made.engine._scheduler.running
            made.engine._speculator._withdraw()
            assert not any(sequence.draft.tokens for sequence in [*running, *made.engine._scheduler.waiting])
    made.run()
    for prompt, seed, answer in asked:
        assert answer.ids == expected(prompt, 20, seed=seed).ids
    load = made.engine.load()
    assert load.preemptions > 0 and load.drafts > 20
