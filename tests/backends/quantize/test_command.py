"""`headrace quantize` at the command line."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backends.quantize.__main__ import main


@pytest.fixture
def model(qwen: Path, byte_model: Path, tmp_path: Path) -> Path:
    """With a tokenizer of bytes."""
    folder = tmp_path / "model"
    shutil.copytree(qwen, folder)
    shutil.copytree(byte_model, folder, dirs_exist_ok=True)
    return folder


def test_a_model_is_quantised_with_a_file_of_texts(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.jsonl").write_text(json.dumps({"text": "Forty-two, said the clerk. " * 20}) + "\n")
    words = ["--model", str(model), "--method", "gptq", "--group", "64", "--out", str(tmp_path / "made")]
    words += ["--calibration", str(tmp_path / "c.jsonl"), "--samples", "8", "--length", "32"]
    assert main(words) == 0
    assert f"headrace evaluate model --model {tmp_path}/made --against {model}" in capsys.readouterr().out
    assert (tmp_path / "made" / "tokenizer.json").exists()
    assert main(words) == 2
    assert "made exists already" in capsys.readouterr().err


def test_mistakes_end_in_one_line(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "made")]
    (tmp_path / "bad.jsonl").write_text("{}")
    for words, reason in (
        (["--model", "smollm", "--method", "rtn"], "neither in the catalogue nor a folder"),
        (["--model", str(model), "--method", "rtn", "--bits", "5"], "--bits: must be 4 or 8, not 5"),
        (
            ["--model", str(model), "--method", "rtn", "--calibration", str(tmp_path / "bad.jsonl")],
            "--calibration: rtn watches no model at work",
        ),
        (
            [
                "--model",
                str(model),
                "--method",
                "awq",
                "--group",
                "64",
                "--calibration",
                str(tmp_path / "bad.jsonl"),
            ],
            "bad.jsonl, line 1: exactly one of text, prompt and messages is needed",
        ),
        (["--model", str(model), "--method", "rtn", "--calibration", "gone.jsonl"], "--calibration: rtn"),
        (["--model", str(model), "--method", "awq", "--calibration", "gone.jsonl"], "gone.jsonl"),
    ):
        assert main([*words, *out]) == 2
        told = capsys.readouterr().err
        assert told.startswith("headrace quantize: ") and reason in told and told.count("\n") == 1
    for wrong in (["--samples", "0"], ["--device", "tpu"], ["--device", "cuda:99"], ["--method", "nf4"]):
        with pytest.raises(SystemExit):
            main(["--model", str(model), "--method", "rtn", *out, *wrong])


def test_headrace_runs_it_in_a_process_with_torch(model: Path, tmp_path: Path) -> None:
    words = ["--model", str(model), "--method", "rtn", "--group", "64", "--out", str(tmp_path / "made")]
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "quantize", *words], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made" / "config.json").exists()
