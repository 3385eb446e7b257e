"""Answers with a grammar, in an engine whose "model" says any token that is allowed."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from backends.engine.compiling import Compile
from backends.engine.grammar import Constraint, GrammarCompiler, GrammarError
from backends.wire import Grammar, Sampling, Submit, Vocabulary

LETTERS = Grammar("regex", "[abc]{30,45}!?")
WORD = Grammar("regex", "ab?")
PROMPT = [1, 2, 3, 4, 5]


class Gate:
    """A compiler that waits until it may go on."""

    def __init__(self) -> None:
        vocabulary = Vocabulary([b"", b"a", b"b"] + [b""] * 61, {})
        self.compiler = GrammarCompiler(vocabulary, frozenset({0}), 64)
        self.open = threading.Event()
        self.compiled: list[Grammar] = []

    def compile(self, grammar: Grammar) -> Constraint:
        assert self.open.wait(60)
        self.compiled.append(grammar)
        return self.compiler.compile(grammar)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_an_answer_obeys_and_ends_with_its_grammar(rig: Callable[..., Any]) -> None:
    answer = rig().ask(PROMPT, 40, grammar=WORD)
    assert (answer.text, answer.finish, answer.trim) in [(b"a", "stop", 0), (b"ab", "stop", 0)]
    ended = rig().ask(PROMPT, 40, grammar=Grammar("regex", "a+"), ignore_eos=False)
    assert set(ended.text) == {ord("a")} and ended.finish == "stop"
    cut = rig().ask(PROMPT, 3, grammar=Grammar("regex", "c{9}"))
    assert (cut.text, cut.finish) == (b"ccc", "length")
    whole = rig().ask(PROMPT, 3, grammar=Grammar("regex", "c{3}"))
    assert (whole.text, whole.finish) == (b"ccc", "stop")


def test_neither_preemption_nor_company_nor_the_cache_changes_it(rig: Callable[..., Any]) -> None:
    quiet = rig().ask(PROMPT, 60, grammar=LETTERS, seed=7)
    busy = rig(kv_blocks=18, token_budget=7)
    answers = [busy.submit(PROMPT, 60, grammar=LETTERS, seed=7) for _ in range(3)]
    others = [busy.submit([9, n], 30, seed=n) for n in range(3)]
    busy.run()
    assert busy.engine.load().preemptions > 0
    assert {bytes(answer.text) for answer in answers} == {bytes(quiet.text)}
    assert all(answer.finish == quiet.finish for answer in answers)
    alone = [rig().ask([9, n], 30, seed=n) for n in range(3)]
    assert [other.ids for other in others] == [answer.ids for answer in alone]


def test_several_answers_share_a_compilation(rig: Callable[..., Any], gate: Gate) -> None:
    gate.open.set()
    engine = rig(gate.compile)
    told: dict[int, list[int]] = {index: [] for index in range(3)}
    grammar = Grammar("regex", "(a|b){20}")
    sampling = Sampling(max_tokens=30, n=3, grammar=grammar, seed=1)
    assert engine.engine.submit(b"gw", Submit(id="g", prompt=PROMPT, sampling=sampling)) is None
    while engine.engine.has_work:
        for _, output in engine.engine.step():
            told[output.index] += output.ids
        engine.engine.check()
    assert gate.compiled == [grammar]
    assert all(len(ids) == 20 and set(ids) <= {1, 2} for ids in told.values())
    assert len({tuple(ids) for ids in told.values()}) == 3


def test_nobody_waits_for_anothers_grammar(rig: Callable[..., Any], gate: Gate) -> None:
    engine = rig(gate.compile)
    waiting = engine.submit(PROMPT, grammar=WORD)
    quick = engine.submit(PROMPT)
    while quick.finish is None:
        engine.step()
    assert waiting.ids == [] and engine.engine.has_work
    assert engine.engine.load().waiting == 1
    gate.open.set()
    engine.run()
    assert waiting.finish == "stop"


def test_tenants_take_turns_at_the_compiler(rig: Callable[..., Any], gate: Gate) -> None:
    engine = rig(gate.compile)
    many = [Grammar("regex", f"a{{{n}}}") for n in range(1, 7)]
    for number, grammar in enumerate(many):
        engine.submit(PROMPT, grammar=grammar, tenant="many", id=f"many {number}")
    engine.submit(PROMPT, grammar=WORD, tenant="one")
    engine.engine.abort(b"gw", "many 1")
    gate.open.set()
    engine.run()
    assert gate.compiled.index(WORD) <= 2  # the first may have been under way
    assert [grammar for grammar in gate.compiled if grammar != WORD] == [many[0], *many[2:]]


def test_what_waits_for_its_grammar_can_be_aborted_and_has_a_deadline(
    rig: Callable[..., Any], gate: Gate
) -> None:
    engine = rig(gate.compile)
    engine.submit(PROMPT, grammar=WORD, id="dropped", n=2)
    late = engine.submit(PROMPT, grammar=WORD, timeout=5.0)
    engine.engine.abort(b"gw", "dropped")
    engine.step()
    assert late.finish is None
    engine.now += 5.0
    engine.step()
    assert late.finish == "deadline"
    engine.idle()
    gate.open.set()
    assert engine.ask(PROMPT, grammar=WORD).finish == "stop"


@pytest.mark.parametrize("n", [1, 3])
def test_a_grammar_that_makes_no_sense_ends_its_request_alone(rig: Callable[..., Any], n: int) -> None:
    engine = rig()
    engine.submit(PROMPT, grammar=Grammar("regex", "("), id="bad", n=n)
    good = engine.submit(PROMPT, grammar=WORD)
    engine.run()
    refused = engine.refused[b"gw", "bad"]
    assert (refused.code, refused.message) == (
        "invalid",
        "sampling.grammar: regular expression: unclosed group",
    )
    assert good.finish == "stop" and engine.answers[b"gw", "bad"].ids == []
    assert engine.engine.load().finished == {"stop": 1}


def test_a_compiler_with_a_bug_harms_nobody(rig: Callable[..., Any]) -> None:
    def fail(grammar: Grammar) -> Constraint:
        raise ZeroDivisionError

    compile: Compile = fail
    engine = rig(compile)
    engine.submit(PROMPT, grammar=WORD, id="bad")
    other = engine.submit(PROMPT)
    engine.run()
    assert engine.refused[b"gw", "bad"].message == "sampling.grammar: it could not be compiled"
    assert other.finish == "length"


def test_a_grammar_that_costs_too_much_later_ends_its_answer_alone(
    rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(self: Constraint, token: int) -> None:
        raise GrammarError("too complex")

    engine = rig()
    bad = engine.submit(PROMPT, grammar=LETTERS)
    other = engine.submit(PROMPT)
    monkeypatch.setattr(Constraint, "accept", accept)
    engine.run()
    assert (bad.finish, bad.last.fault) == ("error", "sampling.grammar: too complex")
    assert other.finish == "length"
    engine.idle()


def test_stops_and_the_least_length_beside_a_grammar(rig: Callable[..., Any]) -> None:
    digits = Grammar("regex", "[abc]{8}")
    full = rig().ask(PROMPT, 20, grammar=digits)
    assert len(full.text) == 8
    stopped = rig().ask(PROMPT, 20, grammar=digits, stop=(full.text[2:4].decode(),))
    assert stopped.text == full.text[: full.text.index(full.text[2:4])]
    stop_id = rig().ask(PROMPT, 20, grammar=Grammar("regex", "abc"), stop_token_ids=(2,))
    assert (stop_id.text, stop_id.finish) == (b"a", "stop")
    # What would end the answer too early is left out, as long as something else is allowed.
    longer = rig().ask(PROMPT, 20, grammar=Grammar("regex", "a*"), ignore_eos=False, min_tokens=12)
    assert len(longer.ids) >= 12
    forced = rig().ask(PROMPT, 20, grammar=Grammar("regex", "abc"), stop_token_ids=(2,), min_tokens=12)
    assert forced.text in (b"a", b"abc")  # "ab" is a token too
    full_end = rig().ask(PROMPT, 20, grammar=digits, min_tokens=12)
    assert (len(full_end.text), full_end.finish) == (8, "stop")
