"""`headrace explain --url`, asking a front door on a real socket."""

import json
from typing import Any

import pytest

from classifier import Assessment
from gateway.cli import main

ASK = ["explain", "--prompt", "Hi", "--max-tokens", "5"]


def test_a_gateway_that_runs_is_asked(front: Any, capsys: pytest.CaptureFixture[str]) -> None:
    front.dispatcher.assessment = Assessment(task="code", good={"7b": 0.9, "70b": 0.95}, seconds=0.001)
    assert main([*ASK, "--url", front.url, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["tier"], told["order"], told["task"]) == ("7b", ["7b", "70b"], "code")
    assert "unknown" not in told
    assert main([*ASK, "--url", f"{front.url}/v1/"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "7b: p=0.90 >= 0.70",
        "if that fails: 70b",
        "task: code",
        "tier              P(good)  prompt tokens  cached",
        "7b                   0.90             12       8",
        "70b                  0.95             12       0",
        "its answer is not judged: there is no calibration",
    ]


def test_the_key_says_who_asks(
    serve: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(anonymous=None) as front:
        monkeypatch.delenv("HEADRACE_KEY", raising=False)
        assert main([*ASK, "--url", front.url]) == 1
        assert capsys.readouterr().err.startswith("The API key is not known.")
        monkeypatch.setenv("TEAM_KEY", "hr_tenant")
        assert main([*ASK, "--url", front.url, "--key-env", "TEAM_KEY"]) == 0
        assert front.dispatcher.requests[-1].tenant.name == "tenant"


def test_nobody_there(capsys: pytest.CaptureFixture[str], unused_tcp_port: int) -> None:
    assert main([*ASK, "--url", f"http://127.0.0.1:{unused_tcp_port}"]) == 2
    assert capsys.readouterr().err.startswith(f"http://127.0.0.1:{unused_tcp_port}/v1/route: ")
