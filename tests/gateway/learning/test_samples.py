"""Samples are read strictly: each fault is told with its line and field, all of them at once."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from classifier.corpus import read_outcomes
from gateway.learning.checkers import Json, Number
from gateway.learning.samples import Sample, SampleError, load, save, save_outcomes

GOOD = '{"prompt": "What is 2 + 2?", "checker": {"kind": "number", "value": "4"}}'


def test_what_is_read(tmp_path: Path) -> None:
    file = tmp_path / "sample.jsonl"
    talk = '{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], '
    talk += '"set": "talk", "max_tokens": 9, "checker": {"kind": "judge", "wanted": "A greeting."}}'
    file.write_text(f"{GOOD}\n\n{talk}\n")
    first, second = load(file)
    assert (first.words, first.set, first.max_tokens, first.checker) == (
        "What is 2 + 2?", "sample", 256, Number("4"),
    )  # fmt: skip
    assert [message.role for message in second.asked.messages] == ["system", "user"]
    assert (second.words, second.set, second.max_tokens) == ("Hi", "talk", 9)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    samples = [Sample(prompt="Give a as JSON", checker=Json({"a": [1, None]}), set="x")]
    save(tmp_path / "s.jsonl", samples)
    assert load(tmp_path / "s.jsonl") == samples
    with gzip.open(tmp_path / "s.jsonl.gz", "wb") as file:
        file.write((tmp_path / "s.jsonl").read_bytes())
    assert load(tmp_path / "s.jsonl.gz") == samples


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "truncated"),
        ('{"prompt": 1, "checker": {"kind": "number", "value": "1"}}', "`$.prompt`"),
        ('{"prompt": "p"}', "missing required field `checker`"),
        ('{"prompt": "p", "checker": {"kind": "guess"}}', "`$.checker.kind`"),
        ('{"prompt": "p", "checker": {"kind": "number", "value": "1", "near": 1}}', "unknown field `near`"),
        ('{"prompt": "p", "answer": "4", "checker": {"kind": "number", "value": "1"}}', "unknown field `answer`"),
        ('{"checker": {"kind": "number", "value": "1"}}', "prompt: exactly one of prompt and messages"),
        ('{"prompt": "p", "checker": {"kind": "regex", "pattern": "("}}', "checker.pattern: missing )"),
        ('{"prompt": "p", "max_tokens": 0, "checker": {"kind": "number", "value": "1"}}', "`$.max_tokens`"),
        ('{"messages": [{"role": "system", "content": "x"}], "checker": {"kind": "judge", "wanted": "w"}}',
         "messages: no user says anything"),
        (GOOD, "the same sample stands above"),
    ],
)  # fmt: skip
def test_faults_are_named(tmp_path: Path, line: str, fault: str) -> None:
    file = tmp_path / "sample.jsonl"
    file.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(SampleError) as error:
        load(file)
    assert str(error.value).startswith(f"{file}, line 2: ") and fault in str(error.value)


def test_all_faults_are_told_at_once_but_not_thousands(tmp_path: Path) -> None:
    file = tmp_path / "sample.jsonl"
    file.write_text("{\n" * 50)
    with pytest.raises(SampleError) as error:
        load(file)
    lines = str(error.value).splitlines()
    assert len(lines) == 21 and lines[-1] == "and 30 more"


@pytest.mark.parametrize(("content", "name"), [(b"", "s.jsonl"), (b"no gzip", "s.jsonl.gz")])
def test_a_file_that_is_none(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SampleError, match=name):
        load(tmp_path / name)


def test_the_digest_is_of_all_that_an_outcome_hangs_on() -> None:
    sample = Sample(prompt="p", checker=Number("1"))
    others = [
        Sample(prompt="q", checker=Number("1")),
        Sample(prompt="p", checker=Number("2")),
        Sample(prompt="p", checker=Number("1"), max_tokens=7),
    ]
    assert len({sample.digest, *(other.digest for other in others)}) == 4
    assert sample.digest == Sample(prompt="p", checker=Number("1")).digest and len(sample.digest) == 32


def test_outcomes_are_what_the_router_is_trained_on(tmp_path: Path, made: Any) -> None:
    samples = [Sample(prompt=f"p{n}", checker=Number("1"), set="sums") for n in range(3)]
    recordings = [
        made.recording(0, tier, good, [-1.0], sample=samples[n].digest)
        for n, tier, good in ((0, "small", False), (0, "large", True), (1, "small", True), (1, "large", True))
    ]
    save_outcomes(tmp_path / "o.jsonl", samples, recordings)
    rows = read_outcomes(tmp_path / "o.jsonl", ["y_small", "y_large"])
    assert [(row.prompt, row.source, row.good) for row in rows] == [
        ("p0", "sums", (0.0, 1.0)), ("p1", "sums", (1.0, 1.0)),
    ]  # fmt: skip
