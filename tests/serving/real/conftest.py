"""A real gateway over real engines: `headrace serve` in a process of its own, as its users run it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

CONFIG = """
server: {{port: 0, drain_timeout: 5}}
state: {{folder: {folder}}}
telemetry: {{otlp_endpoint: {collector}}}
tiers:
  - name: 7b
    price: {{input: 0.1, cached: 0.01, output: 0.1}}
    engines: [{{model: {model}, dtype: float32, kv_tokens: 4096, token_budget: 128}}]
  - name: 70b
    price: {{input: 1.5, cached: 0.15, output: 1.5}}
    engines: [{{model: {model}, dtype: float32, kv_tokens: 4096}}]
anonymous: {{name: anonymous, policy: {{floor: 0.0}}}}
shadow_policies: {{strict: {{floor: 1.0}}}}
tenants:
  - name: metered
    keys: [{{prefix: {prefix}, digest: {digest}}}]
    limits: {{requests_per_minute: 2, tokens_per_minute: 100000, parallel: 4}}
    policy: {{floor: 0.0}}
"""

TOOLS_CONFIG = """
server: {{port: 0, drain_timeout: 5}}
state: {{folder: {folder}}}
tiers:
  - name: 7b
    engines: [{{model: {small}, dtype: float32, kv_tokens: 2048}}]
  - name: 13b
    engines: [{{model: {large}, kv_tokens: 4096}}]
anonymous: {{name: anonymous}}
"""


@dataclass
class Serving:
    """A running `headrace serve`."""

    process: subprocess.Popen[str]
    port: int
    ready_lines: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def children(self) -> list[int]:
        pid = self.process.pid
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]

    def engine(self, replica_number: int) -> int:
        """The process of the engine with this number, in the order of the configuration."""
        found = [
            pid
            for pid in self.children()
            if f"/{replica_number}.json" in Path(f"/proc/{pid}/cmdline").read_text()
        ]
        assert len(found) == 1
        return found[0]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name that carry these labels."""
        text = httpx.get(f"{self.url}/metrics").text
        lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        assert lines, f"no series {name}"
        wanted = [line for line in lines if all(f'{key}="{value}"' in line for key, value in labels.items())]
        return sum(float(line.rsplit(" ", 1)[1]) for line in wanted)

    def eventually(self, what: Callable[[], bool], within: float = 120.0) -> None:
        deadline = time.monotonic() + within
        while not what():
            assert time.monotonic() < deadline, "it did not come true in time"
            time.sleep(0.05)

    def stop(self, signal_number: int = signal.SIGINT, within: float = 60.0) -> int:
        """Send the signal and wait for the end. Returns the exit status."""
        self.process.send_signal(signal_number)
        return self.wait(within)

    def wait(self, within: float) -> int:
        status = self.process.wait(within)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


def start(*arguments: str, environment: dict[str, str] | None = None) -> Serving:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "gateway.cli", "serve", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | (environment or {}),
        start_new_session=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if match := re.search(r"http://[^ /]+:(\d+)", line):
            return Serving(process, int(match[1]), lines)
    raise AssertionError(f"it ended before it was ready: {lines}")


@pytest.fixture(scope="session")
def start_serving() -> Callable[..., Serving]:
    return start


@pytest.fixture(scope="session")
def write_config(smollm2_folder: Path) -> Callable[..., Path]:
    """A configuration with two tiers of SmolLM2. `write_config(folder, collector=…, key=(prefix, digest))`."""

    def write(folder: Path, collector: str = "null", key: tuple[str, str] | None = None) -> Path:
        prefix, digest = key or ("hr_nobody", "0" * 64)
        file = folder / "headrace.yaml"
        file.write_text(
            CONFIG.format(
                folder=folder, collector=collector, model=smollm2_folder, prefix=prefix, digest=digest
            )
        )
        return file

    return write


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, write_config: Callable[..., Path]) -> Iterator[Serving]:
    running = start("--config", str(write_config(tmp_path_factory.mktemp("serving"))))
    yield running
    assert running.stop(within=60) == 0


@pytest.fixture(scope="module")
def serving_tools(
    tmp_path_factory: pytest.TempPathFactory, smollm2_folder: Path, qwen_05b_folder: Path
) -> Iterator[Serving]:
    """Tier 7b knows no tools, 13b does."""
    folder = tmp_path_factory.mktemp("tools")
    file = folder / "headrace.yaml"
    file.write_text(TOOLS_CONFIG.format(folder=folder, small=smollm2_folder, large=qwen_05b_folder))
    running = start("--config", str(file))
    yield running
    assert running.stop(within=60) == 0
