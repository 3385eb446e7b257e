"""A small made-up corpus, so that training is tested without the real one; and the real one's folder."""

import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

SUBJECTS = ("apples", "pears", "trains", "clocks", "rivers", "foxes", "lamps", "stones")


def write(path: Path, rows: Iterable[dict[str, object]]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _outcomes() -> Iterable[dict[str, object]]:
    for i in range(160):
        subject, hard = SUBJECTS[i % len(SUBJECTS)], i % 2
        prompt = (
            f"Prove a hard theorem about {subject} {i}."
            if hard
            else f"Name the colour of {subject}, case {i}."
        )
        y = (0.0, 0.1, 0.9 if i % 4 == 1 else 0.5) if hard else (0.9, 1.0, 1.0)
        yield {
            "id": f"made/{i}",
            "source": "made",
            "prompt": prompt,
            "y_7b": y[0],
            "y_13b": y[1],
            "y_70b": y[2],
        }


def _tasks() -> Iterable[dict[str, object]]:
    forms = {
        "code": "Write a Python function about {}.",
        "math": "How many {} are 3 and 4 of them?",
        "translation": "Translate to French: the {}.",
        "summarization": "Summarize this text on {}.",
        "creative": "Write a poem about {}.",
        "qa": "Where do {} come from?",
        "other_nlp": "Is this review of {} positive?",
    }
    for label, form in forms.items():
        for i, subject in enumerate(SUBJECTS):
            for source in ("left", "right"):
                yield {"source": source, "label": label, "prompt": form.format(f"{subject} {source} {i}")}


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write(folder / "llama2_tiers.jsonl.gz", _outcomes())
    write(folder / "task_types.jsonl.gz", _tasks())
    talks: list[dict[str, object]] = [
        {"category": "writing", "turns": ["Write.", f"Now say it like {subject}."]} for subject in SUBJECTS
    ]
    write(folder / "mt_bench_questions.jsonl.gz", talks)
    return folder


@pytest.fixture(scope="session")
def real_corpus() -> Path:
    folder = os.environ.get("HEADRACE_DATA")
    if not folder:
        pytest.skip("HEADRACE_DATA is not set")
    return Path(folder)
