"""Signals, sockets and exit statuses of a serving process."""

import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from gateway.server import bind
from gateway.server import run as serving

PROGRAM = Path(__file__).parent / "served_app.py"


class Served:
    """The program `served_app.py`."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.said: list[str] = []

    def hear(self, pattern: str) -> str:
        """What the pattern's group matches in the next line that it matches."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.strip())
            if match := re.fullmatch(pattern, line.strip()):
                return match[1] if match.groups() else match[0]
        raise AssertionError(f"it said {self.said} and {self.process.communicate()[1]}")

    def work(self, port: str, seconds: float) -> "Asked":
        return Asked(f"http://127.0.0.1:{port}/work?{seconds}")

    def end(self, within: float = 60.0) -> tuple[int, str]:
        """The exit status, and what it has written to stderr."""
        output, errors = self.process.communicate(timeout=within)
        self.said += output.split("\n")
        return self.process.returncode, errors


class Asked:
    """A request on its way."""

    def __init__(self, url: str) -> None:
        self.outcome: httpx.Response | Exception | None = None
        self._thread = threading.Thread(target=self._ask, args=(url,))
        self._thread.start()

    def _ask(self, url: str) -> None:
        try:
            self.outcome = httpx.get(url, timeout=60)
        except httpx.HTTPError as error:
            self.outcome = error

    def answer(self) -> httpx.Response:
        self._thread.join(120)
        assert isinstance(self.outcome, httpx.Response), self.outcome
        return self.outcome


Run = Callable[..., Served]


@pytest.fixture
def run() -> Iterator[Run]:
    running: list[Served] = []

    def start(port: int = 0, drain_timeout: float = 10.0, **environment: str) -> Served:
        running.append(Served(str(port), str(drain_timeout), **environment))
        return running[-1]

    yield start
    for served in running:
        served.process.kill()
        served.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_idle_server_ends_at_once(run: Run, number: signal.Signals) -> None:
    served = run()
    served.hear(r"open (\d+)")
    served.process.send_signal(number)
    assert served.end() == (0, "")
    assert "stopped" in served.said


def test_a_hang_up_is_passed_on_and_ends_nothing(run: Run) -> None:
    served = run("0", "5")
    port = served.hear(r"open (\d+)")
    served.process.send_signal(signal.SIGHUP)
    served.hear("hung up")
    assert httpx.get(f"http://127.0.0.1:{port}/work?0").text == "worked"
    served.process.send_signal(signal.SIGTERM)
    assert served.end()[0] == 0


def test_running_requests_may_end(run: Run) -> None:
    served = run()
    port = served.hear(r"open (\d+)")
    asked = served.work(port, 1.0)
    served.hear("working")
    served.process.send_signal(signal.SIGTERM)
    assert asked.answer().text == "worked"
    assert served.end() == (0, "")


@pytest.mark.parametrize(("number", "drain_timeout"), [(signal.SIGTERM, 0.3), (signal.SIGINT, 60.0)])
def test_what_runs_too_long_is_cut(run: Run, number: signal.Signals, drain_timeout: float) -> None:
    served = run(drain_timeout=drain_timeout)
    port = served.hear(r"open (\d+)")
    asked = served.work(port, 3600.0)
    served.hear("working")
    served.process.send_signal(number)
    assert (asked.answer().status_code, asked.answer().text) == (503, "draining")
    assert served.end() == (0, "")


def test_while_it_drains_it_still_answers(run: Run) -> None:
    served = run()
    port = served.hear(r"open (\d+)")
    asked = served.work(port, 4.0)
    served.hear("working")
    served.process.send_signal(signal.SIGTERM)
    while (told := served.work(port, 0).answer().text) == "worked":
        time.sleep(0.05)  # until it has heard
    assert told == "draining"
    assert asked.answer().text == "worked"
    assert served.end() == (0, "")


def test_a_second_signal_ends_it_at_once(run: Run) -> None:
    served = run()
    port = served.hear(r"open (\d+)")
    served.work(port, 3600.0)
    served.hear("working")
    served.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    served.process.send_signal(signal.SIGINT)
    assert served.end()[0] == 128 + signal.SIGINT
    assert "stopped" not in served.said


def test_a_signal_while_it_starts(run: Run) -> None:
    served = run(SLOW_START="3600")
    served.hear("starting")
    served.process.send_signal(signal.SIGINT)
    assert served.end() == (0, "")
    assert "stopped" in served.said


def test_a_start_that_fails(run: Run) -> None:
    served = run(FAILING_START="1")
    status, errors = served.end()
    assert status == 1
    assert errors.strip().endswith("RuntimeError: the engine does not start")
    assert not any(line.startswith("open") for line in served.said)


def test_nobody_can_connect_before_it_is_open(run: Run) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = run(port=port, SLOW_START="1")
    served.hear("starting")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert served.hear(r"open (\d+)") == str(port)
    assert served.work(str(port), 0).answer().text == "worked"


def test_thousands_of_streams_are_not_kept_out_by_the_shells_limit_of_files() -> None:
    async def limits() -> tuple[int, int]:
        return resource.getrlimit(resource.RLIMIT_NOFILE)

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] // 2, before[1]))
    try:
        assert serving(limits()) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"^cannot listen on 127.0.0.1:{port}: Address already in use$"):
            bind("127.0.0.1", port)


def test_a_host_that_is_not_ours() -> None:
    with pytest.raises(OSError, match=r"^cannot listen on 203\.0\.113\.1:8080: "):
        bind("203.0.113.1", 8080)
    with pytest.raises(OSError, match=r"^cannot listen on no such host:8080: "):
        bind("no such host", 8080)


def test_the_other_protocol() -> None:
    try:
        with bind("::1", 0) as listener:
            assert listener.family == socket.AF_INET6
    except OSError as error:
        pytest.skip(str(error))
