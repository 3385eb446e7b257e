"""`headrace evaluate model`: a small model against itself in eight bits, and what is refused before that."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gateway import quality
from gateway.cli import main
from gateway.config import Config, Engine, Tier

WORDS = ("abcdef", "bcdefg", "cdefgh", "defghi", "efghij", "fghijk", "ghijkl", "hijklm", "ijklmn", "jklmno")
TASKS: dict[str, list[dict[str, Any]]] = {
    "choices.jsonl": [{"prompt": "xyz", "choices": [word, "qqqq"], "answer": word} for word in WORDS],
    "answers.jsonl": [
        {"prompt": word, "checker": {"kind": "regex", "pattern": chr(ord(word[-1]) + 1)}, "max_tokens": 1}
        for word in WORDS
    ],
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, rows in TASKS.items():
        (tmp_path / name).write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "text.txt").write_text(" ".join(WORDS) * 150)
    return [str(tmp_path / name) for name in (*TASKS, "text.txt")]


def test_what_a_model_loses_is_recorded_beside_it(
    letters_model: Path, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model in eight bits against itself; then in a configuration with a gate."""
    copy = tmp_path / "copy"
    shutil.copytree(letters_model, copy)
    asked = [
        "evaluate",
        "model",
        "--model",
        str(copy),
        "--quantization",
        "int8",
        "--against",
        str(letters_model),
    ]
    assert main([*asked, "--tasks", *files, "--json", str(tmp_path / "out.json")]) == 0
    told = capsys.readouterr().out
    assert "choices.jsonl" in told and "90% interval" in told and "quality.json is written" in told
    [record] = quality.load(copy)
    assert json.loads((tmp_path / "out.json").read_bytes())["model"] == record.model
    by_name = {task.task: task for task in record.tasks}
    for name in TASKS:
        task = by_name[name]
        assert (task.items, task.model, task.against, task.loss, task.high) == (10, 1.0, 1.0, 0.0, 0.0)
    text = by_name["text.txt"]
    assert text.model != text.against and abs(text.loss) < 0.02 and text.low <= text.loss <= text.high
    assert quality.load(letters_model) == ()
    for quantization, opens in (("int8", True), ("none", False)):
        engine = Engine(model=str(copy), quantization=quantization)  # type: ignore[arg-type]
        config = Config(tiers=(Tier(name="7b", engines=(engine,), quality_gate="2%"),))
        assert (not list(quality.faults(config))) == opens


def test_nothing_is_measured_against_the_same_weights_or_another_model(
    letters_model: Path, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(letters_model, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    for against, reason in (
        (letters_model, "has the weights of --model"),
        (other, "is another model: its config says layers 3, not 1"),
    ):
        asked = [
            "evaluate",
            "model",
            "--model",
            str(letters_model),
            "--against",
            str(against),
            "--tasks",
            files[0],
        ]
        assert main(asked) == 2
        told = capsys.readouterr().err
        assert f"--against: {against} {reason}" in told and told.count("\n") == 1
    assert quality.load(letters_model) == ()


def test_mistakes_end_in_one_line(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    asked = ["evaluate", "model", "--model", str(tmp_path / "model"), "--tasks"]
    (tmp_path / "bad.jsonl").write_text("{}")
    for words, reason in (
        ([*asked, str(tmp_path / "bad.jsonl")], "bad.jsonl, line 1: has none of the fields"),
        ([*asked, files[0], files[0]], "--tasks: there are two files of the name choices.jsonl"),
        (
            [*asked, files[0], "--json", "out.json"],
            "--json: writes what was lost, for which --against is needed",
        ),
        ([*asked, str(tmp_path / "gone.txt")], "gone.txt"),
        (
            ["evaluate", "model", "--model", "smollm", "--tasks", files[0]],
            "neither in the catalogue nor a folder",
        ),
    ):
        assert main(words) == 2
        told = capsys.readouterr().err
        assert reason in told and told.count("\n") == 1
    for wrong in (["--device", "tpu"], ["--parallel", "0"], ["--quantization", "int3"]):
        with pytest.raises(SystemExit):
            main([*asked, files[0], *wrong])
