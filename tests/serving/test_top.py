"""`headrace top` against a front door on a real socket."""

import signal
import subprocess
import sys
from typing import Any

import httpx
import pytest

from gateway.cli import main

ASK: Any = {"model": "auto", "messages": [{"role": "user", "content": "x"}]}


def test_once(front: Any, capsys: pytest.CaptureFixture[str]) -> None:
    httpx.post(f"{front.url}/v1/chat/completions", json=ASK)
    assert main(["top", "--url", front.url, "--once"]) == 0
    told = capsys.readouterr().out
    assert "All tiers answer." in told and "7b: requested" in told
    assert "\x1b" not in told


def test_a_key_comes_from_the_environment(
    serve: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(anonymous=None) as front:
        monkeypatch.delenv("HEADRACE_KEY", raising=False)
        assert main(["top", "--url", front.url, "--once"]) == 2
        assert "refuses with 401" in capsys.readouterr().err
        monkeypatch.setenv("MY_KEY", "hr_tenant")
        assert main(["top", "--url", front.url, "--once", "--key-env", "MY_KEY"]) == 2
        assert "Only an admin's key" in capsys.readouterr().err
        monkeypatch.setenv("HEADRACE_KEY", "hr_admin")
        assert main(["top", "--url", front.url, "--once"]) == 0


def test_no_gateway_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", "http://127.0.0.1:9", "--once"]) == 2
    assert "http://127.0.0.1:9 does not answer" in capsys.readouterr().err


def test_something_else_is_there(front: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", f"{front.url}/v1", "--once"]) == 2
    assert "refuses with 404" in capsys.readouterr().err


def test_it_goes_on_until_ctrl_c_and_survives_a_gateway_that_goes_away(front: Any) -> None:
    command = [sys.executable, "-u", "-m", "gateway.cli", "top", "--url", front.url, "--interval", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        told = ""
        while told.count("Headrace ") < 3:
            told += process.stdout.readline()
        front.leave(0)
        front.server.should_exit = True
        while "Trying again" not in told:
            told += process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert told.startswith("\x1b[?1049h") and rest.endswith("\x1b[?1049l")
    assert errors == ""
    assert process.returncode == 130


@pytest.mark.parametrize(
    "words",
    [
        *(["--interval", interval] for interval in ("0", "nan", "soon", "-1")),
        *(["--url", url] for url in ("http://[", "ftp://x", "127.0.0.1:8080", "http://x:port")),
    ],
)
def test_words_that_mean_nothing(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["top", *words])
    assert words[0] in capsys.readouterr().err
