"""`headrace plan`: what it prints for programs and for people, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", "--json", "-", *words]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    told = planned(
        capsys, "--model", "meta-llama/Llama-2-70b-chat-hf", "--gpu", "a100-80g", "--context", "4096"
    )
    assert told["weights_gb"].keys() == told["kv_bytes_per_token"].keys() == {"fp16", "int8", "int4", "fp8"}
    assert told["weights_gb"]["fp16"] == pytest.approx(138, abs=0.1)
    assert told["kv_bytes_per_token"]["fp16"] == 327_680
    assert told["model"]["attention"] == "GQA"
    assert [plan["format"] for plan in told["plans"]] == ["fp16", "int8", "int4", "fp8"]
    assert [plan["tensor_parallel_least"] for plan in told["plans"]] == [2, 1, 1, 1]
    assert told["speculation"] is None and told["peak_requests_per_s"] is None
    assert told["assumptions"]["context"] == 4096


def test_users_and_a_draft(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--model",
        "llama-2-70b",
        "--gpu",
        "h100",
        "--format",
        "int4",
        "--price",
        "3.6",
        "--users",
        "100000",
    ]
    told = planned(capsys, *words, "--draft", "llama-2-7b", "--tensor-parallel", "4")
    assert told["speculation"]["expected_tokens"] == pytest.approx(4.15, abs=0.005)
    [plan] = told["plans"]
    assert plan["tensor_parallel"] == 4
    assert plan["usd_per_million_output_tokens"] == pytest.approx(4 * 1000 / plan["tokens_per_s"])
    assert plan["fleet"]["gpus"] == 4 * plan["fleet"]["replicas"]
    assert plan["fleet"]["usd_per_month"] == pytest.approx(plan["fleet"]["gpus"] * 3.6 * 730)
    assert told["peak_requests_per_s"] == pytest.approx(100_000 * 20 * 3 / 86_400)


def test_for_people(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    words = [
        "--model",
        "mistral-7b-v0.1",
        "--context",
        "16384",
        "--users",
        "5000",
        "--draft",
        "mistral-7b-v0.1",
    ]
    assert main(["plan", *words, "--gpu", "l4", "--gpu", "h100", "--json", str(file)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(
        "mistral-7b-v0.1 (from the table of well-known shapes): 7.24 10^9 parameters, 32 layers"
    )
    for part in (
        "weights, GB: fp16 14.48, int8 7.51",
        "KV, GB per 1,000 tokens: fp16 0.131",
        "32 layers see 4096 tokens and are counted with no more: 0.537 GB a sequence",
        "E(0.85, 5) = 4.15",
        "assumed: --context 16384 --prompt-tokens 512",
        "5,000 users a day: 3.5 requests/s at the peak",
    ):
        assert part in text
    assert json.loads(file.read_text())["model"]["window"] == 4096


def test_a_plan_in_which_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--model",
        "llama-2-70b",
        "--gpu",
        "l4",
        "--format",
        "fp16",
        "--users",
        "9",
        "--memory-share",
        "0.5",
    ]
    assert main(["plan", *words]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(
        "l4        fp16   138.0 GB of weights and a sequence of 1.34 GB do not fit on up to 8"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "llama-2-7b", "--context", "8192"], "--context: 8192 is more than the 4096 tokens"),
        (
            ["--model", "llama-2-7b", "--prompt-tokens", "4000"],
            "--context: 4096 tokens do not hold a prompt of 4000",
        ),
        (["--model", "llama-2-7b", "--peak", "2"], "--peak: says nothing without --users"),
        (["--model", "llama-2-7b", "--draft-tokens", "2"], "--draft-tokens: says nothing without --draft"),
        (["--model", "llama-2-7b", "--draft", "qwen2.5-0.5b"], "--draft: has 151936 tokens, the model 32000"),
        (["--model", "llama-2-7b", "--gpu", "v100"], "--gpu: there is no GPU v100"),
        (["--model", "llama"], "--model: 'llama' is no folder"),
    ],
)
def test_what_is_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith(told) and errors.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--load", "1"],
        ["--load", "0"],
        ["--cached", "1.5"],
        ["--memory-share", "nan"],
        ["--context", "1"],
        ["--tensor-parallel", "9"],
        ["--users", "0"],
        ["--peak", "0.5"],
        ["--format", "int3"],
        ["--kv", "bf8"],
    ],
)
def test_numbers_out_of_their_bounds(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--model", "llama-2-7b", *words])
    assert ended.value.code == 2
    assert f"argument {words[0]}:" in capsys.readouterr().err


def test_no_torch_is_loaded() -> None:
    program = "import sys; from gateway.cli import main; main(['plan', '--model', 'llama-2-7b']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"torch", "numba", "transformers", "triton"} & set(done.stdout.splitlines()[-1].split())
