from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from backends.engine.faults import Fault, fault_from, with_fault

if TYPE_CHECKING:
    from tests.backends.engine.conftest import Answer, Rig


def test_without_an_order_nothing_happens(rig: Callable[..., Rig]) -> None:
    assert fault_from({}) is None
    runner = rig().engine._runner
    assert with_fault(runner, {}) is runner


@pytest.mark.parametrize("order", ["crash_after_tokens:3", "stall_after_tokens:3"])
def test_an_order_for_the_process_leaves_the_runner_alone(rig: Callable[..., Rig], order: str) -> None:
    runner = rig().engine._runner
    assert with_fault(runner, {"HEADRACE_FAULT": order}) is runner


@pytest.mark.parametrize(
    "order",
    [
        "",
        ":3",
        "explode:3",
        "crash_after_tokens",
        "crash_after_tokens:x",
        "stall_after_tokens:-1",
        "fail_after_steps:",
    ],
)
def test_an_order_that_makes_no_sense_is_refused(rig: Callable[..., Rig], order: str) -> None:
    expected = re.escape(
        f"HEADRACE_FAULT='{order}': expected crash_after_tokens:N or stall_after_tokens:N "
        "or fail_after_steps:N or exhaust_after_steps:N"
    )
    with pytest.raises(ValueError, match=expected):
        fault_from({"HEADRACE_FAULT": order})
    with pytest.raises(ValueError, match=expected):
        with_fault(rig().engine._runner, {"HEADRACE_FAULT": order})


@pytest.mark.parametrize(
    ("kind", "error"), [("fail_after_steps", "RuntimeError"), ("exhaust_after_steps", "MemoryError")]
)
@pytest.mark.parametrize("steps", [0, 1, 6])
def test_a_failing_step_ends_those_in_it_and_nobody_else(
    rig: Callable[..., Rig],
    expected: Callable[..., Answer],
    caplog: pytest.LogCaptureFixture,
    kind: str,
    error: str,
    steps: int,
) -> None:
    order = {"HEADRACE_FAULT": f"{kind}:{steps}"}
    assert fault_from(order) is None
    model = rig(max_sequences=3)
    model.engine._runner = with_fault(model.engine._runner, order)
    prompts = [[number, 7, 8, 9] for number in range(5)]
    answers = [model.submit(prompt, 12) for prompt in prompts]
    model.run()
    for answer, prompt in zip(answers[:3], prompts, strict=False):
        assert answer.last is not None
        assert answer.finish == "error"
        assert answer.last.error == f"a step failed with {error}, see the engine's log"
        assert answer.ids == expected(prompt, 12).ids[: len(answer.ids)]
        assert len(answer.ids) == steps
    for answer, prompt in zip(answers[3:], prompts[3:], strict=True):
        assert (answer.finish, answer.ids) == ("length", expected(prompt, 12).ids)
    assert "ordered by HEADRACE_FAULT" in caplog.text
    model.idle()


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
        assert process.wait(60) == -signal.SIGKILL


def test_a_stall_lasts_and_can_be_ended() -> None:
    with strike("stall_after_tokens:1") as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
