"""A real gateway in front of servers that talk at a given pace, and a Chromium to look at its page."""

import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Key
from gateway.tenants import new_key

CONFIG = """
server: {{port: 0, host: 127.0.0.1, drain_timeout: 1}}
state: {{folder: {folder}}}
telemetry: {{log_level: warning}}
tiers:
  - name: 7b
    price: {{input: 0.1, cached: 0.01, output: 0.1}}
    remotes: [{{url: "http://127.0.0.1:{port}/v1", model: 30-5-20}}]
  - name: 13b
    price: {{input: 0.5, cached: 0.05, output: 0.5}}
    remotes: [{{url: "http://127.0.0.1:{port}/v1", model: 60-10-30}}]
  - name: 70b
    price: {{input: 1.5, cached: 0.15, output: 1.5}}
    remotes: [{{url: "http://127.0.0.1:{port}/v1", model: broken}}]
tenants:
  - name: boss
    admin: true
    policy: {{floor: 0.0}}
    keys: [{{prefix: "{prefix}", digest: "{digest}"}}]
    limits:
      {{requests_per_minute: 600, tokens_per_minute: 100000, input_tokens_per_minute: 90000, parallel: 16,
        budget: {{per_day: 5, per_month: 50}}}}
{anonymous}
"""
SECRET = "a secret of at least thirty-two characters"


def free_port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port: int = any_port.getsockname()[1]
        return port


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Ended with the block, its output closed."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=60)


@contextmanager
def gateway(folder: Path, port: int, key: Key, anonymous: bool) -> Iterator[str]:
    """Its address."""
    nobody = "anonymous: {name: anonymous, policy: {floor: 0.0}}" if anonymous else ""
    file = folder / "headrace.yaml"
    file.write_text(
        CONFIG.format(folder=folder, port=port, prefix=key.prefix, digest=key.digest, anonymous=nobody)
        + "secret_env: HEADRACE_TEST_SECRET\n"
    )
    with running([sys.executable, "-u", "-m", "gateway.cli", "serve", "--config", str(file)]) as process:
        assert process.stdout is not None
        told = next(line for line in process.stdout if "is ready at" in line)
        found = re.search(r"http://[^ /]+:\d+", told)
        assert found is not None
        yield found[0]


@pytest.fixture(scope="module")
def talking() -> Iterator[int]:
    """The port of servers that talk."""
    port = free_port()
    with running([sys.executable, str(Path(__file__).with_name("talking_server.py")), str(port)]):
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield port


@pytest.fixture(scope="module")
def start_gateway(talking: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """`with start_gateway(anonymous=False) as (url, key)`: a gateway, and the key of its admin."""
    key, stored = new_key(SECRET.encode())

    @contextmanager
    def start(anonymous: bool = True) -> Iterator[tuple[str, str]]:
        with gateway(tmp_path_factory.mktemp("gateway"), talking, stored, anonymous) as url:
            yield url, key

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_TEST_SECRET", SECRET)
        yield start


@pytest.fixture(scope="module")
def page_url(start_gateway: Callable[..., Any]) -> Iterator[str]:
    with start_gateway() as (url, _):
        yield f"{url}/dashboard"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A driver. Skipped by name where Chromium is not installed."""
    webdriver = pytest.importorskip("selenium.webdriver")
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("chromium is not installed: make test-slow does that")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield made
    made.quit()
