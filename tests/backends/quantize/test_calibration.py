"""Texts that a model is watched on: from a file, and its own words."""

import gzip
from itertools import islice
from pathlib import Path

import pytest
import torch

from backends.quantize.calibration import CalibrationError, origin, read
from backends.quantize.own_words import BEGUN, own_words, starts_of
from backends.tokenizer import Tokenizer

LINES = """\
{"text": "abcdef"}

{"prompt": "gh"}
{"messages": [{"role": "system", "content": "i"}, {"role": "user", "content": "jkl"}]}
{"text": "mnop"}
"""


def test_all_tokens_are_cut_into_sequences_of_one_length(byte_model: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(byte_model)
    (tmp_path / "c.jsonl").write_text(LINES)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(LINES.encode()))
    for name in ("c.jsonl", "c.jsonl.gz"):
        ids = read(tmp_path / name, tokenizer, samples=10, length=5)
        assert [bytes(row.tolist()) for row in ids] == [b"abcde", b"fghij", b"klmno"]
        assert read(tmp_path / name, tokenizer, samples=2, length=5).shape == (2, 5)
    assert origin(tmp_path / "c.jsonl") != origin(tmp_path / "c.jsonl.gz") and origin(None) == "builtin"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "a", "prompt": "b"}', "c.jsonl, line 1: exactly one of text, prompt and messages"),
        ("{}", "line 1: exactly one of"),
        ('{"words": "a"}', "line 1: .*unknown field `words`"),
        ("[1]", "line 1: Expected `object`"),
        ('{"text": "ab"}', "holds fewer tokens than one sequence of 5; see --length"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    byte_model: Path, tmp_path: Path, line: str, reason: str
) -> None:
    (tmp_path / "c.jsonl").write_text(line)
    with pytest.raises(CalibrationError, match=reason):
        read(tmp_path / "c.jsonl", Tokenizer(byte_model), samples=2, length=5)


def test_every_other_text_begins_with_any_token(byte_model: Path) -> None:
    tokenizer = Tokenizer(byte_model)
    found = list(islice(starts_of(tokenizer, 512), 200))
    assert found == list(islice(starts_of(tokenizer, 512), 200))
    ours, chance = ([start for start, _ in found[first::2]] for first in (0, 1))
    assert bytes(ours[0]).decode() in BEGUN or b"bicycle" in bytes(ours[0])
    assert all(len(start) == 1 and tokenizer.vocabulary()[start[0]] for start in chance)
    assert len({start[0] for start in chance}) > 50
    assert {top_p for _, top_p in found[1::2]} == {1.0}


@pytest.mark.models
def test_a_models_own_words_are_text_and_the_same_each_time(smollm2_folder: Path) -> None:
    ids = own_words(smollm2_folder, samples=2, length=64, device="cpu")
    assert ids.shape == (2, 64) and torch.equal(ids, own_words(smollm2_folder, 2, 64, "cpu"))
    tokenizer = Tokenizer(smollm2_folder)
    text = b"".join(tokenizer.vocabulary()[id] for id in ids.flatten().tolist()).decode(errors="replace")
    assert "bicycle" in text and len(set(ids.flatten().tolist())) > 20
