"""Options that cannot be: one line that names the option, and status 2, before anything is measured."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.report import at_least, listed

ALL = (
    "cascade", "engine", "engine_peers", "formats", "frontier", "gateway", "gpu", "isolation", "layers", "prefix",
    "quantize", "signals", "speculation", "step", "streams", "structured", "tensor_parallel", "two_engines",
)  # fmt: skip
THREADED = ("engine", "engine_peers", "formats", "frontier", "isolation", "prefix", "signals", "step")
NAMED = (
    ("formats", "--model"), ("step", "--model"), ("speculation", "--target"), ("speculation", "--draft"),
)  # fmt: skip
WRONG = (
    ("engine_peers", "--rounds", "0"),
    ("engine_peers", "--models", "135m,7b"),
    ("engine_peers", "--formats", "int5"),
    ("engine_peers", "--cases", ""),
    ("gateway", "--workers", "0"),
    ("layers", "--stacks", "/nowhere"),
    ("prefix", "--model", "nonesuch"),  # it has no such option
    ("speculation", "--prompts", "0"),
    ("speculation", "--prompts", "many"),
    ("speculation", "--tokens", "0"),
    ("speculation", "--tokens", "-5"),
    ("speculation", "--tokens", "9"),
    ("speculation", "--quantization", "int5"),
    ("speculation", "--draft-quantization", "bf16"),
    ("speculation", "--method", "guess"),
    ("speculation", "--tasks", "sums"),
    ("step", "--quantization", "int5"),
    ("step", "--quantization", "int8,w8a8"),
    ("step", "--quantization", ""),
)


class Refusal:
    """The last line that a benchmark says of its options, which it refuses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, benchmark: str, *options: str) -> str:
        module = importlib.import_module(f"benchmarks.{benchmark}")
        self._monkeypatch.setattr(sys, "argv", [benchmark, *options])
        with pytest.raises(SystemExit) as ended:
            module.main()
        assert ended.value.code == 2
        said = self._capsys.readouterr()
        assert not said.out
        usage, _, reason = said.err.rpartition(f"{benchmark}: error: ")
        assert usage.startswith("usage: ")
        assert reason.count("\n") == 1
        return reason


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refusal:
    return Refusal(monkeypatch, capsys)


@pytest.mark.parametrize("benchmark", ALL)
def test_a_file_that_cannot_be_written_is_told_first(
    refusal: Refusal, benchmark: str, tmp_path: Path
) -> None:
    absent = tmp_path / "absent"
    assert f"argument --json: there is no folder {absent}" in refusal(
        benchmark, "--json", str(absent / "file")
    )
    assert f"argument --json: {tmp_path} is a folder" in refusal(benchmark, "--json", str(tmp_path))


@pytest.mark.parametrize("threads", ["0", "-2", "two"])
@pytest.mark.parametrize("benchmark", THREADED)
def test_threads_are_counted_from_one(refusal: Refusal, benchmark: str, threads: str) -> None:
    reason = refusal(benchmark, "--threads", threads)
    assert reason == f"argument --threads: {threads!r} is not a whole number from 1 on\n"


@pytest.mark.parametrize("case", WRONG, ids=" ".join)
def test_what_cannot_be_is_refused_by_name(refusal: Refusal, case: tuple[str, str, str]) -> None:
    benchmark, option, value = case
    assert option in refusal(benchmark, option, value)


@pytest.mark.parametrize(("benchmark", "option"), NAMED)
def test_a_model_that_nobody_knows_is_refused(
    refusal: Refusal, letters_model: Path, benchmark: str, option: str
) -> None:
    target = () if option != "--draft" else ("--target", str(letters_model))
    reason = refusal(benchmark, *target, option, "nonesuch")
    assert reason.startswith(f"argument {option}: model 'nonesuch' is neither in the catalogue nor")


@pytest.mark.parametrize("benchmark", ["formats", "step"])
def test_a_folder_without_a_model_is_refused(refusal: Refusal, benchmark: str, tmp_path: Path) -> None:
    assert refusal(benchmark, "--model", str(tmp_path)).startswith(f"{tmp_path}: ")


def test_a_quantization_that_the_device_lacks_is_refused(refusal: Refusal, letters_model: Path) -> None:
    both = ("--target", str(letters_model), "--draft", str(letters_model))
    reason = "quantization: fp8 needs a GPU; int8 runs on any device\n"
    assert refusal("speculation", *both, "--quantization", "fp8") == f"argument --{reason}"
    assert refusal("speculation", *both, "--draft-quantization", "fp8") == f"argument --draft-{reason}"


def test_a_draft_with_another_vocabulary_is_refused(
    refusal: Refusal, letters_model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(letters_model, other)
    file = other / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[70:72]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(tokenizer))
    reason = refusal("speculation", "--target", str(letters_model), "--draft", str(other))
    assert reason == f"argument --draft: {other} has another vocabulary than {letters_model}\n"


def test_prompts_that_are_not_there_are_told_first(
    refusal: Refusal, letters_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path))
    reason = refusal("speculation", "--target", str(letters_model), "--method", "ngram")
    assert reason == f"HEADRACE_DATA: there is no {tmp_path / 'humaneval.jsonl.gz'}\n"


def test_whole_weights_are_told_by_their_type() -> None:
    step = importlib.import_module("benchmarks.step")
    told = {name: step.config_of("model", name, 1) for name in step.QUANTIZATIONS}
    assert {name: (config.quantization, config.dtype) for name, config in told.items()} == {
        "none": ("none", "auto"),
        "auto": ("auto", "auto"),
        "int8": ("int8", "auto"),
        "int4": ("int4", "auto"),
        "bf16": ("none", "bfloat16"),
        "fp32": ("none", "float32"),
    }


def test_types_of_options() -> None:
    assert at_least(10)("10") == 10
    assert listed(["a", "b"])("b,a") == ["b", "a"]
