"""The sets of tasks that benchmarks grade models on: everyday tasks of our own, and public ones where HEADRACE_DATA
names a folder with them. `python -m benchmarks.sets FILE` writes all of them as a sample for `headrace calibrate`."""

import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import everyday
from gateway.learning.checkers import Number, number
from gateway.learning.samples import Sample, save
from gateway.learning.tasks import Function, function

PUBLIC = {"humaneval": "humaneval.jsonl.gz", "gsm8k": "gsm8k_test_a.jsonl.gz"}
GSM8K = 600  # of its questions: half to calibrate with, half to test


def everything() -> list[Sample]:
    """All sets that are here, interleaved, so that every beginning holds some of each."""
    sets = [everyday.samples(), *(rows for rows in (humaneval(), gsm8k()) if rows)]
    places = [
        (at / len(rows), number, row) for number, rows in enumerate(sets) for at, row in enumerate(rows)
    ]
    return [row for _, _, row in sorted(places, key=lambda place: place[:2])]


def humaneval() -> list[Sample]:
    return [function(msgspec.convert(row, Function)) for row in _rows(PUBLIC["humaneval"])]


def gsm8k() -> list[Sample]:
    return [
        Sample(
            prompt=f"{row['question']}\nThink in a few short steps. End with #### and the number.",
            checker=Number(_answer(row["answer"])),
            set="gsm8k",
            max_tokens=200,
        )
        for row in _rows(PUBLIC["gsm8k"])[:GSM8K]
    ]


def _answer(solution: str) -> str:
    value = number(solution.rpartition("####")[2].strip())
    assert value is not None
    return str(value)


def _rows(name: str) -> list[dict[str, Any]]:
    """None where the data are not here."""
    folder = os.environ.get("HEADRACE_DATA")
    if folder is None or not (Path(folder) / name).exists():
        return []
    with gzip.open(Path(folder) / name) as file:
        return [json.loads(line) for line in file]


if __name__ == "__main__":
    save(Path(sys.argv[1]), everything())
