"""The line that the log gets for a request."""

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from backends.backend import Usage
from gateway.logs import (
    MONOTONOUS,
    SELDOM,
    JsonFormatter,
    Seldom,
    TextFormatter,
    configure_logging,
    log_request,
)

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


def test_a_collector_that_is_down_is_one_line_a_minute(
    lines: Callable[[], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in MONOTONOUS:
        monkeypatch.setattr(logging.getLogger(name), "filters", [])
    configure_logging("info")
    configure_logging("info")
    for name in MONOTONOUS:
        for _ in range(5):
            logging.getLogger(name).error("refused")
    assert [line["logger"] for line in lines()] == list(MONOTONOUS)


def test_a_minute_later_it_is_told_again() -> None:
    now, record = [1000.0], logging.LogRecord("m", logging.ERROR, "f", 1, "refused", (), None)
    seldom = Seldom(clock=lambda: now[0])
    told = []
    for _ in range(3 * int(SELDOM)):
        told.append(seldom.filter(record))
        now[0] += 1
    assert [second for second, shown in enumerate(told) if shown] == [0, SELDOM, 2 * SELDOM]


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
