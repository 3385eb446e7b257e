"""Grammars that would harm an engine, in the process that is there to be harmed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import msgspec
import pytest

from backends.engine import trial
from backends.engine.grammar import TOO_SLOW, GrammarCompiler, GrammarError
from backends.engine.trial import Setup, TriedCompiler
from backends.wire import MAX_GRAMMAR, Grammar, Vocabulary

DATA = [b"", *(bytes([byte]) for byte in range(256)), *(f"{n:03}".encode() for n in range(1000))]


@pytest.fixture(scope="module")
def compiler() -> Iterator[TriedCompiler]:
    made = TriedCompiler(Vocabulary(DATA, {0: "<end>"}), frozenset({0}), len(DATA))
    yield made
    made.close()


def schema(value: object) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


def chain(length: int) -> str:
    return "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(length))


def doubled(key: str, depth: int) -> dict[str, object]:
    links = {f"a{n}": {key: [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(depth)}
    return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{depth}": {"type": "string"}}}


TOO_MUCH = {
    "a chain of rules that overflows the stack": Grammar("lark", f'start: r0\n{chain(5000)}\nr5000: "a"'),
    "terminals that double": Grammar("lark", f'start: R0\n{chain(40).upper()}\nR40: "a"'),
    "options": Grammar("regex", "a?" * 30_000 + "a" * 30_000),
    "stars": Grammar("regex", ".*" * 5000),
    "parentheses": Grammar("regex", "(" * 60_000 + "a" + ")" * 60_000),
    "braces": Grammar("lark", "start: " + "(" * 50_000 + '"a"' + ")" * 50_000),
    "objects in objects": Grammar("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000),
    "a long multiple": schema({"type": "integer", "multipleOf": 1000000007}),
    "too many branches": schema(
        {"allOf": [{"anyOf": [{"properties": {f"p{i}_{j}": {}}} for j in range(8)]} for i in range(12)]}
    ),
    "a circle of references": schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
}
MUCH = {
    "an enumeration": schema({"enum": [f"value {n}" for n in range(6000)]}),
    "needed properties": schema(
        {
            "type": "object",
            "properties": {f"p{n}": {"type": "null"} for n in range(2000)},
            "required": [f"p{n}" for n in range(2000)],
        }
    ),
    "references that double": schema(doubled("anyOf", 40)),
    "references that double and meet": schema(doubled("allOf", 40)),
    "a great length": schema({"type": "string", "minLength": 10**9}),
    "a great number": schema({"type": "array", "maxItems": 10**9}),
    "what makes others backtrack": Grammar("regex", "(x+x+)+y"),
    "repetitions of repetitions": Grammar("regex", "(((((a{100}){100}){100}){100}){100})"),
    "words": Grammar("regex", "|".join(f"w{n}" for n in range(15_000))),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_is_too_much_is_refused_soon_and_harms_nobody(compiler: TriedCompiler, name: str) -> None:
    assert len(TOO_MUCH[name].source) <= MAX_GRAMMAR
    before = time.thread_time()
    with pytest.raises(GrammarError):
        compiler.compile(TOO_MUCH[name])
    assert time.thread_time() - before < 0.5, "it was this process that worked"
    assert compiler.compile(Grammar("regex", "a+")).allowed(frozenset(), ending=False).any()


@pytest.mark.parametrize("name", MUCH)
def test_what_is_only_large_is_compiled(compiler: TriedCompiler, name: str) -> None:
    assert len(MUCH[name].source) <= MAX_GRAMMAR
    assert not compiler.compile(MUCH[name]).complete


def test_the_process_ends_with_its_engine() -> None:
    setup = msgspec.msgpack.encode(Setup(Vocabulary(DATA, {}), frozenset({0}), len(DATA)))
    orders = len(setup).to_bytes(4) + setup
    subprocess.run([sys.executable, "-m", "backends.engine.trial"], input=orders, check=True, timeout=60)


def test_one_that_is_killed_is_no_fault_of_the_next_grammar(compiler: TriedCompiler) -> None:
    compiler.compile(Grammar("regex", "a"))
    assert compiler._process is not None
    os.kill(compiler._process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, compiler._process.pid, os.WEXITED | os.WNOWAIT)
    compiler.compile(Grammar("regex", "a kill"))


def test_one_that_stands_still_is_given_up(compiler: TriedCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody else's grammar waits behind it."""
    compiler.compile(Grammar("regex", "a stop"))
    assert compiler._process is not None
    os.kill(compiler._process.pid, signal.SIGSTOP)
    with monkeypatch.context() as impatient:
        impatient.setattr(trial, "PATIENCE", 0.2)
        with pytest.raises(GrammarError):
            compiler.compile(Grammar("regex", "another"))
    compiler.compile(Grammar("regex", "a third"))


def test_a_step_that_is_slow_every_time_counts_and_one_that_is_not_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler = GrammarCompiler(Vocabulary(DATA, {0: "<end>"}), frozenset({0}), len(DATA))
    readings = iter([0.0, 60.0] + [60.0] * 1000)
    monkeypatch.setattr(trial, "time", SimpleNamespace(thread_time=lambda: next(readings)))
    assert trial.fault(compiler, Grammar("regex", "a+")) == ""
    readings = iter(range(1000))
    assert trial.fault(compiler, Grammar("regex", "a+")) == TOO_SLOW


def test_what_was_survived_is_not_tried_again_and_what_was_not_is(
    compiler: TriedCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bytes] = []
    attempt = compiler._try

    def count(order: bytes) -> str:
        tried.append(order)
        return attempt(order)

    monkeypatch.setattr(compiler, "_try", count)
    fine, bad = Grammar("regex", "[xyz]+"), Grammar("regex", "(")
    for _ in range(3):
        assert compiler.compile(fine).allowed(frozenset(), ending=False).any()
        with pytest.raises(GrammarError):
            compiler.compile(bad)
    assert len(tried) == 4
    monkeypatch.setattr(trial, "REMEMBERED", 2)
    for text in ("one", "two", "three"):
        compiler.compile(Grammar("regex", text))
    compiler.compile(fine)
    assert len(tried) == 8, "the oldest are forgotten"
