"""The benchmark of GPUs where there is none: it says so, and its whole logic runs under Triton's interpreter."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu import FAMILIES, NO_GPU, Part, parts
from benchmarks.gpu_kernels import LAUNCHED
from benchmarks.gpu_kernels.random_model import SHAPES, random_decoder
from benchmarks.gpu_serving import Server
from benchmarks.report import Report

ROOT = Path(__file__).parents[2]


def run(*options: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    done = run("--quick")
    assert done.returncode == NO_GPU
    assert done.stderr.startswith("gpu: no GPU to run on: torch") and done.stdout == ""


def test_the_kernels_come_first_and_then_the_models_that_were_asked_for() -> None:
    names = [part.subject for part in parts(["random-7b"], interpret=False)]
    assert names == [*FAMILIES, "random-7b"]
    assert [part.subject for part in parts([], interpret=True)] == [*FAMILIES, gpu.TINY]


def test_a_process_that_ends_early_is_a_row_that_says_so() -> None:
    (row,) = Part("benchmarks.no_such_module", "attention").rows(interpret=True, quick=True)
    assert (row.case, row.unit, row.ratio) == ("attention", "-", 0.0)
    assert row.details == {"failed": "ended with code 1"}


def test_what_a_process_found_before_it_ended_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ending.py").write_text(
        "import pathlib, sys\n"
        'row = \'[{"case":"first","ours":1,"peer":1,"peer_name":"","unit":"us","ratio":1}]\'\n'
        "pathlib.Path(sys.argv[sys.argv.index('--rows') + 1]).write_text(row)\n"
        "sys.exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    first, end = Part("ending", "attention").rows(interpret=True, quick=True)
    assert first.case == "first" and end.details == {"failed": "ended with code 3"}


def test_a_process_that_hangs_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu.PATIENCE, True, 0.01)
    (row,) = Part("benchmarks.gpu_kernels", "rows").rows(interpret=True, quick=True)
    assert row.details == {"failed": "took longer than 0 s"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_of_it_under_the_interpreter(tmp_path: Path) -> None:
    done = run("--interpret", "--json", str(tmp_path / "gpu.json"), timeout=800)
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode((tmp_path / "gpu.json").read_bytes(), type=Report)
    cases = [row.case for row in report.rows]
    assert len(cases) == len(set(cases)) > 50
    assert {case.partition(":")[0] for case in cases} == {*FAMILIES, gpu.TINY}
    named = {kernel for case in cases for kernel in case.partition("[")[2].rstrip("]").split(", ")}
    assert named - {""} == set().union(*LAUNCHED.values())


def test_a_model_that_nobody_trained_can_be_served() -> None:
    """The whole of it is asked for in the slow suite alone."""
    model = random_decoder(SHAPES["random-tiny"], torch.float32, torch.device("cpu"), "none")
    answers, _ = Server(model, 2, 3, tiny=True).run(2)
    assert [len(answer) for answer in answers] == [3, 3]
