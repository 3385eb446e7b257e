"""Reading the data sets, and the split that must never move."""

import gzip
from pathlib import Path

import pytest

from classifier import corpus, everyday
from classifier.corpus import CorpusError


def write(path: Path, *lines: bytes) -> None:
    path.write_bytes(gzip.compress(b"\n".join(lines)))


def test_turns_of_one_question_stay_together(tmp_path: Path) -> None:
    line = b'{"id": "mtbench/7/%d", "source": "mtbench", "prompt": "%s", "y_7b": 0, "y_13b": 0.5, "y_70b": 1}'
    write(tmp_path / corpus.TIER_OUTCOMES, line % (1, b"Ask\\n\\nMore"), line % (0, b"Ask"))
    rows = corpus.outcomes(tmp_path)
    assert [row.prompt for row in rows] == ["Ask\n\nMore", "Ask"]
    assert {row.question for row in rows} == {"Ask"}
    assert rows[0].good == (0.0, 0.5, 1.0)


def test_the_split_is_frozen() -> None:
    assert [corpus.fold(f"question {i}") for i in range(12)] == [1, None, 2, None, 1, 4, 0, 1, None, 1, 4, 3]
    assert corpus.fold(" question 3\n") == corpus.fold("question 3")


def test_a_fifth_is_held_out() -> None:
    folds = [corpus.fold(str(i)) for i in range(5000)]
    assert 0.18 < folds.count(None) / 5000 < 0.22
    assert {fold for fold in folds if fold is not None} == set(range(corpus.FOLDS))


def test_examples_hold_every_task(corpus_folder: Path) -> None:
    rows = corpus.examples(corpus_folder)
    by_source = {
        source: {row.task for row in rows if row.source == source} for source in {row.source for row in rows}
    }
    assert by_source["left"] == {"code", "math", "translation", "summarization", "creative", "qa"}
    assert by_source["mtbench follow-up"] == {"chat"}
    assert by_source[corpus.EVERYDAY] == {*by_source["left"], "chat"}


def test_everyday_prompts_are_distinct_and_not_blank() -> None:
    prompts = [prompt for _, prompt in everyday.prompts()]
    assert len(set(prompts)) == len(prompts) and all(prompt.strip() for prompt in prompts)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (gzip.compress(b'{"id": "a"}\n'), "line 1: Object missing required field `prompt`"),
        (gzip.compress(b"{"), "line 1: Input data was truncated"),
        (b"plain", "line 1: Not a gzipped file"),
        (gzip.compress(b"x" * 100)[:-12], "line 1: Compressed file ended"),
    ],
)
def test_a_damaged_file_is_told_by_name(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / corpus.TIER_OUTCOMES).write_bytes(content)
    with pytest.raises(CorpusError, match=f"{corpus.TIER_OUTCOMES}, {told}"):
        corpus.outcomes(tmp_path)


def test_a_missing_file_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=f"{corpus.TASK_TYPES}: No such file"):
        corpus.examples(tmp_path)


def lines(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows))
    return path


def test_own_answers_need_no_more_than_a_prompt_and_the_outcomes(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "mine.jsonl",
        '{"prompt": "a", "small": 1, "large": 0.5}',
        "",
        '{"prompt": "b", "source": "s", "scores": {"small": 0, "large": 1}, "more": [1]}',
    )
    rows = corpus.read_outcomes(path, ("small", "large"))
    assert [(row.source, row.question, row.good) for row in rows] == [
        ("mine", "a", (1.0, 0.5)),
        ("s", "b", (0.0, 1.0)),
    ]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ('{"prompt": "a", "y": 1}', "z is missing"),
        ('{"prompt": "a", "y": 1, "z": 1.5}', "z must be a number from 0 to 1, not 1.5"),
        ('{"prompt": "a", "y": true, "z": 1}', "y must be a number from 0 to 1, not True"),
        ('{"prompt": "a", "y": "1", "z": 1}', "y must be a number from 0 to 1, not '1'"),
        ('{"y": 1, "z": 1}', "Object missing required field `prompt`"),
        ("[1]", "Expected `object`, got `array`"),
    ],
)
def test_a_row_that_cannot_be_used_is_told_by_line(tmp_path: Path, row: str, told: str) -> None:
    path = lines(tmp_path / "mine.jsonl", '{"prompt": "a", "y": 1, "z": 1}', row)
    with pytest.raises(CorpusError, match=f"mine.jsonl, line 2: {told}"):
        corpus.read_outcomes(path, ("y", "z"))
