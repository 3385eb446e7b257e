"""`headrace explain`, from a configuration; `tests/serving` has it ask a gateway that runs."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main

CONFIG = """
server: {port: 0}
state: {folder: STATE}
anonymous: {name: anonymous}
aliases: {big: 70b}
shadow_policies: {strict: {floor: 0.99}}
tenants:
  - {name: small, tiers: [7b], keys: [{prefix: hr_, digest: DIGEST}]}
  - {name: thrifty, max_request_price: 0.000001}
  - {name: careful, max_request_price: 0.0002}
tiers:
  - {name: 7b, price: {output: 0.1}, remotes: [{url: "http://127.0.0.1:9/v1", model: m}]}
  - {name: 13b, price: {output: 1}, remotes: [{url: "http://127.0.0.1:9/v1", model: m}]}
  - {name: 70b, price: {output: 10}, remotes: [{url: "http://127.0.0.1:9/v1", model: m, context_length: 4096}]}
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    file = tmp_path / "headrace.yaml"
    file.write_text(CONFIG.replace("STATE", str(tmp_path / "state")).replace("DIGEST", "a" * 64))
    return file


def explained(capsys: pytest.CaptureFixture[str], config_file: Path, *words: str) -> dict[str, Any]:
    assert main(["explain", "--config", str(config_file), "--json", *words]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_a_decision_worked_out(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = explained(capsys, config_file, "--prompt", "What is the capital of France?", "--max-tokens", "5")
    assert told["order"][0] == told["tier"] and set(told["order"]) == {"7b", "13b", "70b"}
    assert set(told["good"]) == {"7b", "13b", "70b"}
    assert told["reason"].startswith(f"{told['tier']}: p=")
    assert told["shadows"].keys() == {"strict"}
    assert told["estimated"] == ["7b", "13b", "70b"]
    assert "cached prefixes" in told["unknown"] and told["left_out"] == {}
    assert not (config_file.parent / "state").exists()  # nothing was opened or made


def test_a_named_tier_and_an_alias(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = explained(capsys, config_file, "--prompt", "Hi", "--model", "big")
    assert (told["order"], told["task"]) == (["70b"], None)
    assert told["reason"].startswith("70b: requested")


@pytest.mark.parametrize(
    ("tenant", "left_out"),
    [
        ("small", {"13b": "not open to small", "70b": "not open to small"}),
        ("careful", dict.fromkeys(["13b", "70b"], "could cost more than max_request_price of careful")),
    ],
)
def test_tiers_that_are_left_out_have_a_reason(
    tenant: str, left_out: dict[str, str], config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = explained(capsys, config_file, "--prompt", "Hi", "--tenant", tenant)
    assert (told["order"], told["left_out"]) == (["7b"], left_out)


def test_for_people(
    config_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Translate to French: good morning"))
    assert main(["explain", "--config", str(config_file), "--tenant", "small", "--file", "-"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("7b: p=")
    assert "task: translation" in rest
    assert "70b              left out: not open to small" in rest
    assert rest[-1].startswith("Not known without a running gateway")


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["--prompt", "Hi", "--tenant", "smal"], 2, "--tenant: there is no tenant smal; did you mean small?"),
        (["--prompt", " "], 2, "the prompt is empty"),
        (["--file", "/nowhere"], 2, "[Errno 2]"),
        (
            ["--prompt", "Hi", "--model", "gpt"],
            1,
            "model: 'gpt' does not exist; known are auto, 7b, 13b, 70b, big",
        ),
        (["--prompt", "x" * 60_000], 1, "This model's maximum context length is 8192 tokens."),
        (["--prompt", "Hi", "--tenant", "thrifty"], 1, "max_tokens: the request could cost 0.0001024;"),
        (["--prompt", "Hi", "--url", "http://127.0.0.1:9"], 2, "--config: not beside --url"),
    ],
)
def test_what_would_be_refused(
    words: list[str], status: int, told: str, config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "--config", str(config_file), *words]) == status
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith(told) and errors.count("\n") == 1
