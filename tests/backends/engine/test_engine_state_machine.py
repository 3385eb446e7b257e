"""Anything in any order on tiny pools: blocks always add up, and every answer is the right one or its beginning."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from backends.engine.engine import answer_sampling
from backends.wire import BANDS, Band, Grammar, Sampling

if TYPE_CHECKING:
    from tests.backends.engine.conftest import Answer, FakeDrafter, Rig

CONFIGS = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([1, 2, 4]),
        "kv_blocks": st.integers(6, 14),
        "token_budget": st.integers(1, 12),
        "max_sequences": st.integers(1, 5),
        "max_waiting": st.integers(3, 8),
        "max_waiting_tokens": st.sampled_from([50, 1000]),
        "paced": st.booleans(),
        "overlap": st.booleans(),
        "step_budget_ms": st.sampled_from([None, 15.0]),
        "interactive_sequences": st.integers(1, 3),
        "tenant_share": st.sampled_from([0.2, 0.5, 1.0]),
        # Where drafts are; None: there are none.
        "wrong": st.sampled_from([None, (), (), (1,), (0,), (2, 5)]),
        "bands": st.sampled_from([BANDS, (Band(below=2, rows=1, ttft_ms=1), Band(rows=4, ttft_ms=2))]),
    }
)
PROMPTS = st.lists(st.integers(1, 2), min_size=1, max_size=30)  # two tokens only: many common prefixes
SAMPLINGS = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 20),
        "seed": st.integers(0, 2),
        "ignore_eos": st.booleans(),
        "stop": st.sampled_from([(), ("ab",), ("\n", "ba", "aab")]),
        "stop_token_ids": st.sampled_from([(), (5, 20, 30, 40)]),
        "grammar": st.sampled_from([None, None, None, Grammar("regex", "[abc]{3,12}")]),
        "n": st.sampled_from([1, 1, 1, 3]),
    }
)


class AnyOrder(RuleBasedStateMachine):
    def __init__(
        self,
        make: Callable[..., Rig],
        drafter: Callable[..., FakeDrafter],
        expected: Callable[..., Answer],
        totals: Counter[str],
    ) -> None:
        super().__init__()
        self.make, self.drafter, self.expected, self.totals = make, drafter, expected, totals

    @initialize(config=CONFIGS)
    def build(self, config: dict[str, Any]) -> None:
        rest = {name: value for name, value in config.items() if name != "wrong"}
        drafters = () if config["wrong"] is None else (self.drafter(config["wrong"]),)
        self.rig = self.make(drafters=drafters, **rest)
        self.asked: dict[tuple[bytes, str], tuple[list[int], dict[str, Any]]] = {}
        self.silent: set[tuple[bytes, str]] = set()

    @rule(prompt=PROMPTS, sampling=SAMPLINGS, priority=st.integers(0, 1))
    def submit_another(self, prompt: list[int], sampling: dict[str, Any], priority: int) -> None:
        self.submit(prompt, sampling, b"one", priority=priority)

    @rule(
        prompt=PROMPTS,
        sampling=SAMPLINGS,
        sender=st.sampled_from([b"one", b"two", b"two"]),
        salt=st.sampled_from([b"", b"", b"salt"]),
        tenant=st.sampled_from(["", "a", "a", "b"]),
        session=st.sampled_from(["", "s", "t"]),
        weight=st.sampled_from([0.5, 1.0, 3.0]),
        traffic=st.sampled_from(["interactive", "interactive", "batch"]),
        priority=st.integers(0, 1),
        timeout=st.sampled_from([None, None, 0.5, 2.0]),
    )
    def submit(self, prompt: list[int], sampling: dict[str, Any], sender: bytes, **options: Any) -> None:
        context = self.rig.engine.context_length
        if len(prompt) + 1 > context:
            with pytest.raises(AssertionError, match="context_length_exceeded"):
                self.rig.submit(prompt, **sampling, **options)
            return
        load, config = self.rig.engine.load(), self.rig.config
        name = f"n{len(self.asked)}"
        try:
            self.rig.submit(prompt, id=name, sender=sender, **sampling, **options)
        except AssertionError as refusal:
            assert "overloaded" in str(refusal)
            crowded = load.waiting >= config.max_waiting
            assert crowded or load.waiting_tokens + len(prompt) > config.max_waiting_tokens
            return
        assert load.waiting < 2 * config.max_waiting + config.max_sequences
        compiling = [future for _, future in self.rig.engine._compiling._orders.values()]
        wait(compiling, 60.0)  # all of them, so that it is the same in every run
        right = {**sampling, "max_tokens": min(sampling["max_tokens"], context - len(prompt))}
        for index in range(right.pop("n")):
            seed = answer_sampling(Sampling(**sampling), index).seed
            self.asked[sender, f"{name}#{index}" if index else name] = (prompt, {**right, "seed": seed})

    @rule(steps=st.integers(1, 8))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.rig.step()
            self.totals["paused"] += self.rig.engine.load().paused

    @rule(steps=st.integers(1, 3))
    def step_a_little(self, steps: int) -> None:
        self.step(steps)

    @rule(kind=st.sampled_from(["abort", "abort", "wait", "wait", "lose", "fail"]), data=st.data())
    def disturb(self, kind: str, data: st.DataObject) -> None:
        getattr(self, kind)(data)
        self.rig.engine.check()

    def abort(self, data: st.DataObject) -> None:
        live = [key for key in self.asked if self.rig.answers[key].finish is None]
        if live:
            sender, name = data.draw(st.sampled_from(live))
            id = name.partition("#")[0]
            self.rig.engine.abort(sender, id)
            self.silent |= {key for key in self.asked if key[0] == sender and key[1].partition("#")[0] == id}

    def lose(self, data: st.DataObject) -> None:
        self.rig.engine.abort_sender(b"two")
        self.silent |= {key for key in self.asked if key[0] == b"two"}

    def fail(self, data: st.DataObject) -> None:
        if self.rig.engine.has_work:
            self.rig.runner.failures.append(RuntimeError("ordered"))
            self.rig.step()
            self.rig.runner.failures.clear()  # unless all had expired

    def wait(self, data: st.DataObject) -> None:
        self.rig.now += data.draw(st.floats(0.1, 2))

    def teardown(self) -> None:
        self.rig.run()
        load = self.rig.engine.load()
        self.totals.update(steps=load.steps, preemptions=load.preemptions, hits=load.prefix_hits)
        self.totals.update(drafted=load.drafted_tokens, accepted=load.accepted_tokens)
        self.totals.update(load.finished)
        for key, (prompt, sampling) in self.asked.items():
            self.judge(self.rig.answers[key], self.expected(prompt, **sampling), key in self.silent)

    def judge(self, answer: Answer, right: Answer, may_be_silent: bool) -> None:
        if answer.finish in ("stop", "length"):
            assert (answer.ids, answer.finish, answer.trim) == (right.ids, right.finish, right.trim)
        else:
            assert answer.finish in ("deadline", "error") or may_be_silent
            assert answer.ids == right.ids[: len(answer.ids)]


@pytest.mark.timeout(600)  # a minute on an idle machine
def test_anything_in_any_order(
    rig: Callable[..., Rig],
    drafter: Callable[..., FakeDrafter],
    expected: Callable[..., Answer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)  # the failures are ordered
    totals: Counter[str] = Counter()
    run_state_machine_as_test(
        lambda: AnyOrder(rig, drafter, expected, totals),  # type: ignore[arg-type]  # a factory is welcome too
        settings=settings(
            max_examples=380,
            stateful_step_count=40,
        ),
    )
    # What is random may not be idle. Ten times less than what is usual is taken for broken.
    assert totals["steps"] >= 10_000
    assert totals["preemptions"] > 8
    assert totals["hits"] > 60
    assert totals["paused"] > 4
    assert totals["drafted"] > totals["accepted"] > 100
    assert all(totals[reason] > 0 for reason in ("stop", "length", "deadline", "error", "abort")), totals
