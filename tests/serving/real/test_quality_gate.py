"""A real model in four bits, measured against its whole weights, and a tier with a gate that may not run it."""

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway import quality

pytestmark = [pytest.mark.slow, pytest.mark.models, pytest.mark.timeout(900)]

README = Path(__file__).parents[3] / "README.md"
ORDERS = (
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "January February March April May June July August September October November December",
    "one two three four five six seven eight nine ten",
    "first second third fourth fifth sixth seventh eighth ninth tenth",
    "A B C D E F G H I J K L M N O P",
)
CONFIG = """
server: {{port: 0}}
state: {{folder: {folder}}}
tiers:
  - name: 7b
    quality_gate: {gate}
    engines: [{{model: {model}, kv_tokens: 2048}}]
anonymous: {{name: anonymous}}
"""


def choices(count: int) -> list[dict[str, object]]:
    """Which word of a well-known order comes next, among others of that order; the same ones each time."""
    draw = random.Random(7)
    rows: list[dict[str, object]] = []
    for number in range(count):
        words = ORDERS[number % len(ORDERS)].split()
        at = draw.randrange(len(words) - 3)
        begun, right = words[at : at + 3], words[at + 3]
        wrong = draw.sample([word for word in words if word not in (*begun, right)], 3)
        rows.append(
            {"prompt": ", ".join(begun) + ",", "choices": draw.sample([right, *wrong], 4), "answer": right}
        )
    return rows


def headrace(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def folder(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With `rounded`, the model rounded to four bits, and task files."""
    folder = tmp_path_factory.mktemp("gate")
    (folder / "prose.txt").write_text(README.read_text(encoding="utf-8")[:12_000])
    (folder / "orders.jsonl").write_text("\n".join(map(json.dumps, choices(20))))
    done = headrace(
        *("quantize", "--model", str(smollm2_folder), "--method", "rtn", "--group", "64"),
        *("--out", str(folder / "rounded")),
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def told(folder: Path, smollm2_folder: Path) -> Sequence[str]:
    """What `headrace evaluate model` says, by line."""
    tasks = [str(folder / name) for name in ("prose.txt", "orders.jsonl")]
    done = headrace(
        *("evaluate", "model", "--model", str(folder / "rounded")),
        *("--against", str(smollm2_folder), "--tasks", *tasks),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_rounding_loses_what_is_measured(folder: Path, told: Sequence[str]) -> None:
    [record] = quality.load(folder / "rounded")
    prose, orders = record.tasks
    assert (prose.task, prose.kind) == ("prose.txt", "perplexity") and prose.items >= 10
    assert 0.05 < prose.low < prose.loss < prose.high < 1
    assert prose.model == pytest.approx(prose.against * (1 + prose.loss))
    assert (orders.items, orders.kind) == (20, "choices")
    assert orders.against > 0.6  # a quarter by chance
    assert any(line.startswith("prose.txt") and f"{prose.loss:.2%}" in line for line in told)


@pytest.mark.usefixtures("told")
def test_a_tier_with_a_gate_does_not_start_with_it(folder: Path) -> None:
    [record] = quality.load(folder / "rounded")
    config = folder / "headrace.yaml"
    config.write_text(CONFIG.format(folder=folder / "state", gate="2%", model=folder / "rounded"))
    refused = headrace("serve", "--config", str(config))
    assert refused.returncode == 2
    assert "tiers[0].quality_gate" in refused.stderr and "more than 2.0%" in refused.stderr
    assert f"may have lost {record.worst.high:.1%} on {record.worst.task}" in refused.stderr
    config.write_text(CONFIG.format(folder=folder / "state", gate="100%", model=folder / "rounded"))
    assert headrace("config", "check", str(config)).returncode == 0
