import signal
import subprocess
import sys

import pytest

from backends.engine.faults import Fault, fault_from


def test_without_an_order_nothing_happens() -> None:
    assert fault_from({}) is None


@pytest.mark.parametrize(
    "order", ["", "explode:3", "crash_after_tokens", "crash_after_tokens:x", "stall_after_tokens:-1"]
)
def test_an_order_that_makes_no_sense_is_refused(order: str) -> None:
    with pytest.raises(ValueError, match=f"HEADRACE_FAULT='{order}': expected crash_after_tokens:N"):
        fault_from({"HEADRACE_FAULT": order})


def test_it_strikes_once_the_tokens_are_there() -> None:
    struck = []
    fault = Fault(lambda: struck.append(True), 5)
    for tokens in (0, 2, 2):
        fault.count(tokens)
    assert not struck
    fault.count(2)
    assert struck


def strike(order: str) -> subprocess.Popen[bytes]:
    script = "import os; from backends.engine.faults import fault_from; fault_from(os.environ).count(1)"
    return subprocess.Popen([sys.executable, "-c", script], env={"HEADRACE_FAULT": order})


def test_a_crash_is_a_kill() -> None:
    with strike("crash_after_tokens:1") as process:
        assert process.wait(10) == -signal.SIGKILL


def test_a_stall_lasts_and_can_be_ended() -> None:
    with strike("stall_after_tokens:1") as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.terminate()
        assert process.wait(2) == -signal.SIGTERM
