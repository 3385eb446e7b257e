"""What `headrace quantize` writes, in the hands of vLLM, where `make bench-peers` has put it."""

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.quantize.job import Order, quantize
from backends.quantize.settings import settings

Logits = Callable[[Path, Sequence[int]], torch.Tensor]

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


@pytest.mark.parametrize("name", METHODS)
def test_it_is_read_and_says_the_same(name: str, qwen: Path, logits: Logits, tmp_path: Path) -> None:
    order = Order(
        source=qwen, out=tmp_path / "made", settings=settings(**METHODS[name]),
        calibrate=lambda: torch.randint(0, 199, (8, 32), generator=torch.Generator().manual_seed(1)),
        calibration="ours", device=torch.device("cpu"),
    )  # fmt: skip
    quantize(order, lambda total, done: None, lambda: None)
    command = [str(PYTHON), str(READER), str(order.out), *map(str, IDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    ours = logits(order.out, IDS + said["ids"])[len(IDS) - 1 : -1]
    chosen = ours.gather(1, torch.tensor(said["ids"])[:, None])[:, 0]
    torch.testing.assert_close(chosen, torch.tensor(said["logprobs"]), atol=NEAR, rtol=0)
    assert (ours.amax(-1) - chosen).max() < NEAR
