"""The line that the log gets for a request."""

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from backends.backend import Usage
from gateway.logs import JsonFormatter, TextFormatter, configure_logging, log_request

USAGE = Usage(prompt_tokens=7, completion_tokens=2, cached_tokens=5)


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """What the configured log has written to stderr; the root logger is put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    root.handlers[:], root.level = handlers, level


def test_one_line_for_a_request(lines: Callable[[], list[dict[str, Any]]]) -> None:
    configure_logging("info")
    configure_logging("info")  # once more: still one line
    log_request(
        request_id="r1", trace_id="abc", endpoint="chat", status=200, seconds=1.23456789, tenant="acme", tier="7b",
        reason="7b: p=0.81 >= 0.70", task="qa", usage=USAGE, cost=0.000123, first_text=0.5,
    )  # fmt: skip
    (line,) = lines()
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info", "logger": "headrace.request", "message": "request", "request_id": "r1", "trace_id": "abc",
        "endpoint": "chat", "tenant": "acme", "tier": "7b", "reason": "7b: p=0.81 >= 0.70", "task": "qa", "status": 200,
        "cost": 0.000123,
        "prompt_tokens": 7, "cached_tokens": 5, "completion_tokens": 2, "first_text": 0.5, "seconds": 1.234568,
    }  # fmt: skip


def test_what_is_not_known_is_left_out(lines: Callable[[], list[dict[str, Any]]]) -> None:
    configure_logging("debug")
    log_request(
        request_id="r", trace_id=None, endpoint="other", status=401, seconds=0.0, code="invalid_api_key"
    )
    (line,) = lines()
    assert set(line) == {
        "time", "level", "logger", "message", "request_id", "endpoint", "status", "code", "seconds",
    }  # fmt: skip


def test_the_level_holds_and_libraries_stay_quiet(lines: Callable[[], list[dict[str, Any]]]) -> None:
    configure_logging("warning")
    log_request(request_id="r", trace_id=None, endpoint="chat", status=200, seconds=0.0)
    assert lines() == []
    configure_logging("debug")
    logging.getLogger("httpx").info("HTTP Request: POST http://10.0.0.7/v1 200")
    assert lines() == []


def test_a_traceback_and_a_line_break_stay_in_one_line() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        caught = (type(error), error, error.__traceback__)
    record = logging.LogRecord("gateway", logging.ERROR, "f", 1, "a\n%s", ("b",), caught)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert json.loads(text)["message"] == "a\nb"
    assert "ValueError: first\nsecond" in json.loads(text)["exception"]


def test_for_people_it_is_one_line_of_words(capsys: pytest.CaptureFixture[str], lines: object) -> None:
    configure_logging("info", "text")
    log_request(request_id="r1", trace_id=None, endpoint="chat", status=200, seconds=1.5, reason="7b: a b")
    line = capsys.readouterr().err
    words = 'request_id=r1 endpoint=chat reason="7b: a b" status=200 seconds=1.5\n'
    assert line.endswith(f"info    headrace.request: request {words}")


def test_nobody_can_forge_a_line_of_words() -> None:
    record = logging.LogRecord("gateway", logging.ERROR, "f", 1, "a\n2030-01-01 info", (), None)
    assert TextFormatter().format(record).count("\n") == 0
