"""How long clients of the laptop preset wait for the first text, when beginnings are held back and when whole answers
are judged: one real gateway that is told to change, one request at a time."""

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from statistics import median

import httpx
import numpy as np
import yaml

from benchmarks.report import Row
from gateway.learning.samples import Sample

ANSWER = 300.0  # seconds
WHEN = ("hold", "end")


def rows(asked: Sequence[Sample], preset: str = "laptop") -> list[Row]:
    """The median and the 95th percentile, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "headrace.yaml"
        waited: dict[str, list[float]] = {}
        _write(file, preset, WHEN[0])
        with _gateway(file) as (url, process):
            _waits(url, asked)  # whatever is slow once; after it both find the prompts cached
            for when in WHEN:
                _write(file, preset, when)
                process.send_signal(signal.SIGHUP)
                time.sleep(2)
                waited[when] = _waits(url, asked)
    held, ended = waited["hold"], waited["end"]
    return [
        _row("TTFT p50: held back", median(held), median(ended), len(asked)),
        _row(
            "TTFT p95: held back", float(np.quantile(held, 0.95)), float(np.quantile(ended, 0.95)), len(asked)
        ),
    ]


def _row(case: str, ours: float, peer: float, requests: int) -> Row:
    return Row(
        case=case,
        ours=ours,
        peer=peer,
        peer_name="judged at the end",
        unit="s",
        ratio=peer / ours,
        details={"requests": requests},
    )


def _write(file: Path, preset: str, when: str) -> None:
    """The preset, with every request beginning on the cheapest tier, and nothing decided by the clock."""
    presets = resources.files("gateway").joinpath("presets")
    config = yaml.safe_load(presets.joinpath(f"{preset}.yaml").read_text(encoding="utf-8"))
    for beside in ("classifier", "calibration"):
        if beside in config:
            config[beside] = str(presets.joinpath(config[beside]))
    config["server"] = {"port": 0}
    config["state"] = {"folder": "state"}
    config["anonymous"] = {
        "name": "anonymous",
        "policy": {"floor": 0.0},
        "cascade": {"when": when, "hold_ms": 600_000, "threshold": 0.5},
    }
    file.write_text(json.dumps(config))  # which is YAML too


@contextmanager
def _gateway(file: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli", "serve", "--config", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = re.search(r"http://\S+/v1", process.stdout.readline())
        if ready is None:
            raise RuntimeError("the gateway did not start")
        yield ready[0], process
    finally:
        process.terminate()
        process.wait()


def _waits(url: str, asked: Sequence[Sample]) -> list[float]:
    """Seconds to the first text of each answer."""
    with httpx.Client(timeout=ANSWER) as client:
        return [_wait(client, url, sample) for sample in asked]


def _wait(client: httpx.Client, url: str, sample: Sample) -> float:
    messages = [{"role": each.role, "content": each.content} for each in sample.conversation]
    body = {
        "model": "auto", "messages": messages, "stream": True, "temperature": 0, "max_tokens": sample.max_tokens,
    }  # fmt: skip
    began = time.perf_counter()
    with client.stream("POST", f"{url}/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {") and _says_something(line):
                return time.perf_counter() - began
    return time.perf_counter() - began


def _says_something(line: str) -> bool:
    choices = json.loads(line.removeprefix("data: "))["choices"]
    return any(choice["delta"].get("content") for choice in choices)
