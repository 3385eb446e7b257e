"""A book of recordings grows line by line, survives being killed, and holds nothing that anybody has said."""

from pathlib import Path
from typing import Any

import pytest

from gateway.learning.recordings import Book, RecordingError, load


def test_a_later_run_knows_what_is_there(tmp_path: Path, made: Any) -> None:
    path = tmp_path / "r.jsonl"
    first, second = made.tier("small", 2, 0.0, 1.0)
    with Book(path) as book:
        book.add(first)
    with Book(path) as book:
        assert first.key in book and second.key not in book
        book.add(second)
    assert load(path) == [first, second]


def test_half_a_line_of_a_killed_run_is_cut_off(tmp_path: Path, made: Any) -> None:
    path = tmp_path / "r.jsonl"
    first, second = made.tier("small", 2, 0.0, 1.0)
    with Book(path) as book:
        book.add(first)
    with path.open("ab") as file:
        file.write(b'{"v":1,"sample":"ab')
    with Book(path) as book:
        assert book.recordings == [first]
        book.add(second)
    assert load(path) == [first, second]


def test_what_was_graded_again_counts(tmp_path: Path, made: Any) -> None:
    path = tmp_path / "r.jsonl"
    with Book(path) as book:
        for good in (False, True):
            book.add(made.recording(0, "small", good, [-1.0]))
    assert [each.good for each in load(path)] == [True]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ((b'"v":1', b'"v":2'), "`$.v`"),
        ((b'"good":true', b'"good":1'), "`$.good`"),
        ((b'"v":1', b'"v":1,"prompt":"p"'), "unknown field `prompt`"),
        ((b'"margins":[2.0]', b'"margins":[]'), "different lengths"),
    ],
)
def test_faults_are_named(tmp_path: Path, made: Any, change: tuple[bytes, bytes], fault: str) -> None:
    path = tmp_path / "r.jsonl"
    with Book(path) as book:
        book.add(made.recording(0, "small", True, [-1.0]))
    path.write_bytes(path.read_bytes().replace(*change))
    with pytest.raises(RecordingError, match=r"r\.jsonl, line 1: ") as error:
        load(path)
    assert fault in str(error.value)


def test_the_trace_is_what_rules_read(made: Any) -> None:
    trace = made.recording(0, "small", True, [-1.0, -2.0], forced=3, margins=(None, 4.0)).trace
    assert trace.logprobs.tolist() == [-1.0, -2.0] and trace.forced == 3
    assert str(trace.margins.tolist()) == "[nan, 4.0]"
