"""Gateways of two workers over engines without a model, in processes of their own."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.config import Key
from gateway.tenants import new_key
from gateway.totals import Totals

SECRET = "a secret of at least thirty-two characters"
CONFIG = """
server: {{port: 0, admin: {{port: 0}}, workers: 2, drain_timeout: 15}}
state: {{folder: state}}
telemetry: {{records: records, log_level: warning}}
secret_env: HEADRACE_TEST_SECRET
tiers:
{tiers}
tenants:
  - name: acme
    keys: [{{prefix: {key.prefix}, digest: {key.digest}}}]
    policy: {{floor: 0.0}}
    limits: {{requests_per_minute: {rate}, requests_burst: {burst}}}
"""

ENGINE = "  - {{name: 7b, price: {{input: 1, output: 2}}, engines: [{{model: {model}, kv_tokens: 4096}}]}}"


class Site:
    """A running gateway. `url` is where clients go, `admin` where operators do."""

    def __init__(self, folder: Path, process: subprocess.Popen[str], key: str) -> None:
        self.folder = folder
        self.process = process
        self.key = key
        self.url, self.admin = self._heard(r"ready at (http://[^ /]+)"), self._heard(r"administration: (\S+)")

    def _heard(self, pattern: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if match := re.search(pattern, line):
                return match[1]
        raise AssertionError(f"it ended before it said {pattern}")

    def children(self, word: str) -> list[int]:
        """Processes of the gateway whose command line holds this."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        pids = [int(child) for task in tasks for child in (task / "children").read_text().split()]
        return [pid for pid in pids if word in Path(f"/proc/{pid}/cmdline").read_text()]

    @property
    def workers(self) -> list[int]:
        return self.children("gateway.workers")

    def totals(self) -> Totals:
        return Totals(text_string_to_metric_families(httpx.get(f"{self.admin}/metrics").text))

    def ask(self, path: str, method: str = "GET") -> Any:
        """An operator's question, each on a connection of its own, so to any of the workers."""
        headers = {"content-type": "application/json"}
        return httpx.request(method, self.admin + path, headers=headers, timeout=60)

    def chat(self, tokens: int = 3, stream: bool = False) -> dict[str, Any]:
        """What to send."""
        body = {
            "model": "7b",
            "max_tokens": tokens,
            "stream": stream,
            "messages": [{"role": "user", "content": "abc"}],
        }
        return {"json": body, "headers": {"authorization": f"Bearer {self.key}"}}

    async def load(
        self, count: int, at_once: int = 8, **asked: Any
    ) -> list[httpx.Response | httpx.HTTPError]:
        """So many requests, each on a connection of its own."""
        gate = asyncio.Semaphore(at_once)

        async def one() -> httpx.Response | httpx.HTTPError:
            async with gate, httpx.AsyncClient(timeout=60) as client:
                try:
                    return await client.post(f"{self.url}/v1/chat/completions", **self.chat(**asked))
                except httpx.HTTPError as error:
                    return error

        return await asyncio.gather(*(one() for _ in range(count)))

    def eventually(self, what: Callable[[], bool], within: float = 90.0) -> None:
        deadline = time.monotonic() + within
        while not what():
            assert time.monotonic() < deadline, "it did not come true in time"
            time.sleep(0.05)

    def records(self) -> list[dict[str, Any]]:
        files = (self.folder / "records").iterdir()
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


StartSite = Callable[..., Any]


@pytest.fixture(scope="module")
def start_site(byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartSite]:
    """`with start_site(rate=6, burst=2) as site`: a tenant's requests per minute and at once; `tiers`: in YAML."""
    if not (byte_model / "config.json").exists():
        (byte_model / "config.json").write_text('{"max_position_embeddings": 4096}')
    key, stored = new_key(SECRET.encode())

    @contextmanager
    def start(rate: int = 100_000, burst: int = 100_000, tiers: str | None = None) -> Iterator[Site]:
        folder = tmp_path_factory.mktemp("site")
        write(folder, stored, rate, burst, tiers or ENGINE.format(model=byte_model))
        program = Path(__file__).with_name("fake_engines.py")
        process = subprocess.Popen(
            [sys.executable, "-u", str(program), "serve", "--config", str(folder / "headrace.yaml")],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield Site(folder, process, key)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=60)
            finally:
                process.kill()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_TEST_SECRET", SECRET)
        yield start


def write(folder: Path, key: Key, rate: int, burst: int, tiers: str) -> None:
    text = CONFIG.format(tiers=tiers, key=key, rate=rate, burst=burst)
    (folder / "headrace.yaml").write_text(text)
