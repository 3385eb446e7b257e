"""The programs that a benchmark of the gateway starts, each until its block ends.

What is measured has one core for itself; stubs, stores and the load share the others.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

CORES = sorted(os.sched_getaffinity(0))
MEASURED = {CORES[0]}
OTHERS = set(CORES[1:]) or MEASURED
LITELLM = Path(__file__).parent.parent / ".bench" / "litellm" / "bin" / "litellm"
START_TIMEOUT = 180.0  # seconds; the peer imports a lot
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Program:
    port: int
    pid: int

    @property
    def cpu(self) -> float:
        """Seconds of CPU used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    @property
    def memory(self) -> int:
        """Bytes of resident memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return 1024 * int(status.partition("VmRSS:")[2].split()[0])


@contextmanager
def program(
    command: Sequence[str],
    ready: str,
    cores: set[int],
    environment: Mapping[str, str] | None = None,
) -> Iterator[Program]:
    """Yields when what it prints matches `ready`, whose group is the port. Raises RuntimeError with its last words."""
    with tempfile.TemporaryFile() as output:
        running = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", **(environment or {})},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),  # no threads yet
        )
        try:
            yield Program(_port(running, output.fileno(), ready), running.pid)
        finally:
            running.send_signal(signal.SIGINT)
            try:
                running.wait(20)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


def _port(running: "subprocess.Popen[bytes]", output: int, ready: str) -> int:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        said = os.pread(output, 1 << 20, 0).decode(errors="replace")
        if match := re.search(ready, said):
            return int(match[1] or 0)
        if running.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"{running.args!r} did not start: {said[-2000:]}")


@contextmanager
def stub() -> Iterator[Program]:
    with program([sys.executable, "-m", "benchmarks.stub"], r"stub ready on (\d+)", OTHERS) as running:
        yield running


@contextmanager
def collector() -> Iterator[Program]:
    command = [sys.executable, "-m", "benchmarks.collector"]
    with program(command, r"collector ready on (\d+)", OTHERS) as running:
        yield running


@contextmanager
def redis() -> Iterator[Program]:
    """Raises FileNotFoundError where there is no redis-server."""
    if shutil.which("redis-server") is None:
        raise FileNotFoundError("redis-server")
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        command = ["redis-server", "--port", str(port), "--save", "", "--dir", folder]
        with program(command, r"Ready to accept connections()", OTHERS) as running:
            yield Program(port, running.pid)


@contextmanager
def headrace(
    config: str,
    module: str = "gateway.cli",
    environment: Mapping[str, str] | None = None,
    cores: set[int] = MEASURED,
) -> Iterator[Program]:
    """`config`: YAML, in which {folder} stands for a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "headrace.yaml"
        file.write_text(config.replace("{folder}", folder))
        command = [sys.executable, "-m", module, "serve", "--config", str(file)]
        others = ",".join(map(str, OTHERS))
        variables = {"BENCHMARK_SECRET": "0" * 64, "BENCHMARK_ENGINE_CORES": others, **(environment or {})}
        with program(command, r"ready at http://[\d.]+:(\d+)", cores, variables) as running:
            yield running


@contextmanager
def bare(upstream: int) -> Iterator[Program]:
    environment = {"BENCHMARK_UPSTREAM": f"http://127.0.0.1:{upstream}/v1"}
    command = [sys.executable, "-m", "benchmarks.bare"]
    with program(command, r"running on http://[\d.]+:(\d+)", MEASURED, environment) as running:
        yield running


LITELLM_CONFIG = """
model_list:
  - model_name: auto
    litellm_params: {{model: openai/stub, api_base: "http://127.0.0.1:{port}/v1", api_key: none}}
general_settings: {{master_key: sk-benchmark}}
litellm_settings: {{telemetry: false, num_retries: 0}}
"""


@contextmanager
def litellm(upstream: int) -> Iterator[Program]:
    """Its proxy, with a key and one worker, as its documentation starts it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "litellm.yaml"
        file.write_text(LITELLM_CONFIG.format(port=upstream))
        port = str(_free_port())
        command = [str(LITELLM), "--config", str(file), "--host", "127.0.0.1", "--port", port]
        environment = {
            "LITELLM_LOG": "ERROR",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_MODE": "PRODUCTION",
        }
        with program(command, r"Set models:()", MEASURED, environment) as running:
            _await_open(int(port))
            yield Program(int(port), running.pid)


def _await_open(port: int) -> None:
    """For a program that does not say when it can be asked. Raises TimeoutError."""
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise TimeoutError(f"nobody listens on port {port}")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
