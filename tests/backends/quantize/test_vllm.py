"""What `headrace quantize` writes, in the hands of vLLM, where `make bench-peers` has put it."""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

Logits = Callable[[Path, Sequence[int]], torch.Tensor]
Quantized = Callable[[Mapping[str, Mapping[str, Any]]], dict[str, Path]]

PYTHON = Path(__file__).parents[3] / ".bench" / "vllm" / "bin" / "python"
READER = Path(__file__).with_name("read_by_vllm.py")
# What its build for CPUs reads: four bits.
METHODS: dict[str, dict[str, Any]] = {
    "awq": {"method": "awq", "group": 64},
    "gptq": {"method": "gptq", "group": 64},
    "rtn": {"method": "rtn", "group": 64},
}
NEAR = 0.05  # of log-probabilities: of ties, and of what it rounds, in float16
IDS = [17, 4, 141, 98, 3, 60, 12]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON.exists(), reason="make bench-peers puts vLLM into .bench/vllm"),
]


@pytest.fixture(scope="module")
def made(quantized: Quantized) -> dict[str, Path]:
    return quantized(METHODS)


@pytest.fixture(scope="module")
def said(made: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All of them by one process: starting it takes longer than all that it does."""
    answers = tmp_path_factory.mktemp("said") / "answers.json"
    prompt = ",".join(map(str, IDS))
    command = [str(PYTHON), str(READER), str(answers), prompt, *map(str, made.values())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(zip(made, json.loads(answers.read_text()), strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_it_is_read_and_says_the_same(
    name: str, made: dict[str, Path], said: dict[str, Any], logits: Logits
) -> None:
    theirs = said[name]
    ours = logits(made[name], IDS + theirs["ids"])[len(IDS) - 1 : -1]
    chosen = ours.gather(1, torch.tensor(theirs["ids"])[:, None])[:, 0]
    torch.testing.assert_close(chosen, torch.tensor(theirs["logprobs"]), atol=NEAR, rtol=0)
    assert (ours.amax(-1) - chosen).max() < NEAR
