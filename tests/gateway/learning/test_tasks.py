"""Files of tasks: told apart by what is in them, refused with the line and the reason."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.learning.checkers import Python
from gateway.learning.samples import Sample
from gateway.learning.tasks import PIECE, Choice, Piece, TaskError, load, pieces


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


CHOICE = {"prompt": "The sky is", "choices": ["blue", "green"], "answer": 0}
ANSWER = {"prompt": "1 + 1?", "checker": {"kind": "number", "value": "2"}}
FUNCTION = {
    "task_id": "T/0", "prompt": "def one():\n", "canonical_solution": "    return 1\n",
    "test": "def check(f):\n    assert f() == 1\n", "entry_point": "one",
}  # fmt: skip


def test_each_kind_is_told_by_its_fields(tmp_path: Path) -> None:
    text = "word " * 3000
    (tmp_path / "t.txt").write_text(text)
    task = load(tmp_path / "t.txt")
    assert (task.name, task.kind, task.digest) == (
        "t.txt",
        "perplexity",
        hashlib.sha256(text.encode()).hexdigest(),
    )
    assert load(write(tmp_path / "t.jsonl", *[{"text": "x" * PIECE}] * 10)).kind == "perplexity"
    choices = load(write(tmp_path / "c.jsonl", *[CHOICE] * 10))
    assert choices.kind == "choices" and isinstance(choices.items[0], Choice) and choices.items[0].right == 0
    answers = load(write(tmp_path / "a.jsonl", *[ANSWER] * 10))
    assert answers.kind == "answers" and isinstance(answers.items[0], Sample)
    (tmp_path / "h.jsonl.gz").write_bytes(gzip.compress("\n".join([json.dumps(FUNCTION)] * 10).encode()))
    functions = load(tmp_path / "h.jsonl.gz")
    [first, *_] = functions.items
    assert functions.kind == "answers" and isinstance(first, Sample) and isinstance(first.checker, Python)
    assert first.checker.tests.endswith("check(one)") and "def one()" in (first.prompt or "")


def test_a_text_is_cut_at_blanks_and_nothing_of_it_is_lost_but_a_short_end() -> None:
    text = " ".join(f"word{n}" for n in range(2000))
    cut = pieces(text)
    assert all(PIECE // 2 <= len(piece.text) <= PIECE for piece in cut)
    assert text.startswith(" ".join(piece.text for piece in cut))
    assert len(text) - sum(len(piece.text) + 1 for piece in cut) < PIECE // 2
    assert pieces("x" * (2 * PIECE)) == [Piece("x" * PIECE)] * 2  # without a blank


def test_an_answer_may_be_named_by_its_words() -> None:
    assert Choice("p", ("a", "b"), "b").right == 1
    assert Choice("p", ("a", "b"), 2).right == Choice("p", ("a", "b"), "c").right == -1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "t.jsonl: is empty"),
        (b"words\n", "t.jsonl, line 1: JSON is malformed.*; a text needs the ending .txt"),
        (b"{}\n", "line 1: has none of the fields choices, checker, entry_point, text, which tell tasks apart"),
        (json.dumps(CHOICE | {"answer": 2}).encode(), "line 1: answer: 2 is none of the 2 choices"),
        (json.dumps(CHOICE | {"choices": ["a"]}).encode(), "line 1: Expected `array` of length >= 2"),
        (json.dumps(CHOICE | {"answr": 1}).encode(), "line 1: .*unknown field `answr`"),
        (f"{json.dumps(CHOICE)}\n{json.dumps(ANSWER)}".encode(), "line 2: "),
        (json.dumps(CHOICE).encode(), "has 1 tasks, of fewer than 10 no interval can be told"),
        (
            json.dumps({"prompt": "p", "checker": {"kind": "judge", "wanted": "good"}}).encode(),
            "line 1: checker.kind: judge asks another model",
        ),
        (json.dumps({"prompt": "p", "checker": {"kind": "regex", "pattern": "("}}).encode(), "line 1: checker.pattern"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "t.jsonl").write_bytes(content)
    with pytest.raises(TaskError, match=reason):
        load(tmp_path / "t.jsonl")


def test_short_and_broken_texts_are_named(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("short")
    with pytest.raises(TaskError, match="has 0 pieces of 1000 characters"):
        load(tmp_path / "t.txt")
    (tmp_path / "t.txt").write_bytes(b"caf\xe9")
    with pytest.raises(TaskError, match="is not UTF-8 at byte 3"):
        load(tmp_path / "t.txt")
    (tmp_path / "t.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(TaskError, match="t.jsonl.gz: "):
        load(tmp_path / "t.jsonl.gz")
