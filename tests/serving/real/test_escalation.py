"""An escalation from one real model to another, made certain by a calibration that believes nothing."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from backends.fingerprint import fingerprint
from classifier import Task
from classifier.calibration import Calibration, Calibrations, save
from classifier.confidence import FEATURES, Rule

pytestmark = pytest.mark.models

CONFIG = """
server: {{port: 0, drain_timeout: 5}}
state: {{folder: state}}
telemetry: {{records: records}}
calibration: calibration.json
tiers:
  - name: 7b
    price: {{input: 0.1, cached: 0.01, output: 0.1}}
    engines: [{{model: {small}, dtype: float32, kv_tokens: 2048, cores: 1}}]
  - name: 70b
    price: {{input: 1.5, cached: 0.15, output: 1.5}}
    engines: [{{model: {large}, kv_tokens: 2048, token_budget: 32, cores: 1}}]
anonymous: {{name: anonymous, policy: {{floor: 0.0}}, cascade: {cascade}}}
"""
HOLD = "{hold_tokens: 16, hold_ms: 60000}"
END = "{when: end}"
TEXT = "The mill stands by the river, and its wheel turns when the water is high. " * 6
ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": f"{TEXT} Where does the mill stand?"}],
    "temperature": 0,
    "max_tokens": 40,
}


def doubting(task: Task, after: int | None) -> Rule:
    """P(good) = 0.12 of whatever is said."""
    zeros, ones = (0.0,) * len(FEATURES), (1.0,) * len(FEATURES)
    return Rule(
        task=task, after=after, mean=zeros, scale=ones, weights=zeros, bias=-2.0, auc=0.8,
        calibration_error=0.0, answers=100, good=12,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, smollm2_folder: Path, qwen_05b_folder: Path) -> Path:
    made = tmp_path_factory.mktemp("escalation")
    rules = tuple(doubting(task, after) for task in get_args(Task) for after in (8, 16, None))
    calibration = Calibration(model=fingerprint(smollm2_folder), weights="float32", rules=rules)
    save(made / "calibration.json", Calibrations(models=(calibration,)))
    write(made, smollm2_folder, qwen_05b_folder, HOLD)
    return made


def write(folder: Path, small: Path, large: Path, cascade: str) -> None:
    (folder / "headrace.yaml").write_text(CONFIG.format(small=small, large=large, cascade=cascade))


@pytest.fixture(scope="module")
def doubtful(folder: Path, start_serving: Callable[..., Any]) -> Iterator[Any]:
    running = start_serving("--config", str(folder / "headrace.yaml"))
    yield running
    assert running.stop(within=60) == 0


def ask(serving: Any, **fields: Any) -> httpx.Response:
    body = {"model": "auto", **ASK, **fields}
    headers = {"x-headrace-ledger": "true"}
    url = f"{serving.url}/v1/chat/completions"
    return httpx.post(url, json=body, headers=headers, timeout=240, trust_env=False)


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = answer.text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def test_it_answers_as_the_larger_model_does_and_tells_why(doubtful: Any, folder: Path) -> None:
    route = httpx.post(f"{doubtful.url}/v1/route", json={"model": "auto", **ASK}, timeout=60, trust_env=False)
    judged = route.json()["judged"]
    assert (judged["when"], judged["after"], judged["next"]) == ("hold", [8, 16], "70b")
    answer = ask(doubtful)
    assert answer.headers["x-headrace-tier"] == "70b"
    assert answer.headers["x-headrace-reason"].startswith(
        "70b: escalated from 7b (p=0.12 < 0.50 after 16 tokens)"
    )
    told = answer.json()
    small, large = told["headrace"]["ledger"]
    assert (small["outcome"], small["completion_tokens"], small["judged_after"]) == ("escalated", 16, 16)
    assert small["confidence"] == pytest.approx(0.1192, abs=1e-4)
    assert large["completion_tokens"] == told["usage"]["completion_tokens"]
    assert float(told["headrace"]["billed"]) == pytest.approx(
        float(small["cost"]) + float(large["cost"]), abs=2e-9
    )
    direct = ask(doubtful, model="70b")
    assert [entry["tier"] for entry in direct.json()["headrace"]["ledger"]] == ["70b"]
    assert direct.json()["choices"][0]["message"] == told["choices"][0]["message"]
    assert doubtful.metric("headrace_escalations_total", from_tier="7b", to_tier="70b") == 1
    assert doubtful.metric("headrace_ledger_tokens_total", outcome="escalated", kind="completion") == 16
    doubtful.eventually(lambda: any((folder / "records").glob("*.jsonl")))
    lines = (folder / "records").glob("*.jsonl")
    record = next(json.loads(line) for file in lines for line in file.read_text().splitlines())
    if record["endpoint"] == "chat":
        assert record["attempts"][0]["confidence"] == pytest.approx(0.1192, abs=1e-4)


def test_in_a_stream_the_first_byte_is_the_larger_models(doubtful: Any) -> None:
    whole, streamed = ask(doubtful).json(), ask(doubtful, stream=True)
    assert streamed.headers["x-headrace-tier"] == "70b"
    told = events(streamed)
    assert {chunk["model"] for chunk in told} == {"70b"}
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in told if c["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert [entry["outcome"] for entry in told[-1]["headrace"]["ledger"]] == ["escalated", "answered"]


def test_the_larger_one_reads_the_prompt_before_it_is_needed(
    doubtful: Any, folder: Path, smollm2_folder: Path, qwen_05b_folder: Path
) -> None:
    """The terms changed while it ran: now whole answers are judged, and there is time to read."""
    write(folder, smollm2_folder, qwen_05b_folder, END)
    doubtful.process.send_signal(signal.SIGHUP)
    doubtful.eventually(lambda: doubtful.metric("headrace_config_version") == 2)
    used = doubtful.metric("headrace_warms_total", tier="70b", used="yes")
    asked = [{"role": "user", "content": f"Once more. {TEXT} Why does its wheel turn?"}]
    told = ask(doubtful, messages=asked).json()
    small, large = told["headrace"]["ledger"]
    assert small["judged_after"] == small["completion_tokens"] - (small["completion_tokens"] < 40)
    assert large["cached_tokens"] >= 16
    assert doubtful.metric("headrace_warms_total", tier="70b", used="yes") == used + 1
