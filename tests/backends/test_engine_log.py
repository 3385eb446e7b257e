"""What engines write is one log with what the gateway writes."""

import logging
import subprocess
import sys

import pytest

from backends.engine_log import EngineLog


@pytest.fixture
def engine_log(caplog: pytest.LogCaptureFixture) -> EngineLog:
    caplog.set_level(logging.DEBUG)
    return EngineLog("7b/0")


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    return [(entry.name, entry.levelname, entry.getMessage()) for entry in caplog.records]


def test_an_entry_keeps_its_level_and_its_logger(
    engine_log: EngineLog, caplog: pytest.LogCaptureFixture
) -> None:
    engine_log.add("INFO backends.engine.runner: it computes in float32: as configured")
    engine_log.add("ERROR backends.engine.process: step 3 failed")
    assert told(caplog) == [
        ("backends.engine.runner", "INFO", "[7b/0] it computes in float32: as configured"),
        ("backends.engine.process", "ERROR", "[7b/0] step 3 failed"),
    ]


def test_a_traceback_is_never_less_than_what_it_belongs_to(
    engine_log: EngineLog, caplog: pytest.LogCaptureFixture
) -> None:
    for line in ("INFO a: well", "a library's word", "ERROR a: failed", "  File 'x'", "WARNING a: odd", "of it", "",
                 "Traceback (most recent call last):", "  File 'y'", "INFO a: again", "100% done"):  # fmt: skip
        engine_log.add(line)
    levels = [level for _, level, text in told(caplog)]
    assert levels == ["INFO", "WARNING", *["ERROR"] * 2, *["WARNING"] * 2, *["ERROR"] * 2, "INFO", "WARNING"]


def test_signs_of_formatting_are_only_text(engine_log: EngineLog, caplog: pytest.LogCaptureFixture) -> None:
    engine_log.add("INFO a: 100%s of %d")
    assert told(caplog) == [("a", "INFO", "[7b/0] 100%s of %d")]


def test_without_a_log_it_comes_out_on_stderr() -> None:
    code = "from backends.engine_log import EngineLog; EngineLog('7b/0').add('INFO a: well')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "[7b/0] INFO a: well\n")
