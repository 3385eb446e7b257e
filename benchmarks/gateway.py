"""What the gateway adds to a request, over a stub that answers after a fixed time.

The same request goes to the stub directly and through the gateway, one after the other, with authentication,
limits (SQLite), session and classification on. The gateway and the stub are processes of their own.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

from benchmarks.load import Connection
from benchmarks.report import Report, Row, arguments, machine, publish

DELAY = 0.1  # seconds that the stub thinks
CHUNKS = 20
CONCURRENCY = 16

CONFIG = """
server: {{host: 127.0.0.1, port: {port}}}
state: {{folder: {folder}}}
tiers:
  - name: 7b
    remotes: [{{url: "http://127.0.0.1:{stub}/v1", model: stub, kind: vllm}}]
  - name: 70b
    remotes: [{{url: "http://127.0.0.1:{stub}/v1", model: stub, kind: vllm}}]
anonymous:
  name: anonymous
  limits: {{requests_per_minute: 1000000, tokens_per_minute: 1000000000, parallel: 1000}}
"""

BODY = {
    "model": "auto",
    "stream": True,
    "max_tokens": 64,
    "messages": [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Explain in two sentences how a water wheel turns a mill stone."},
    ],
}


@contextmanager
def process(*command: str, ready: str) -> Iterator[re.Match[str]]:
    """Run a command until the block ends; yields the match of `ready` in what it prints."""
    running = subprocess.Popen(
        [sys.executable, "-u", *command],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"NO_COLOR": "1"},
    )
    try:
        assert running.stdout is not None
        for line in running.stdout:
            if match := re.search(ready, line):
                yield match
                return
        raise RuntimeError(f"{' '.join(command)} ended before it was ready")
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(20)


async def sequential(stub: int, gateway: int, count: int) -> list[tuple[float, float]]:
    """Pairs of (gateway, stub) seconds to the last byte, at 1 request at a time."""
    body = json.dumps(BODY).encode()
    pairs = []
    async with Connection(stub) as direct, Connection(gateway) as through:
        for connection in (direct, through):  # once, to warm up
            assert (await connection.post("/v1/chat/completions", body)).status == 200
        for _ in range(count):
            base = await direct.post("/v1/chat/completions", body)
            ours = await through.post("/v1/chat/completions", body)
            pairs.append((ours.whole, base.whole))
    return pairs


async def closed_loop(port: int, count: int) -> float:
    """Requests per second with CONCURRENCY clients, each sending its next request when the last is answered."""
    body = json.dumps(BODY).encode()

    async def client() -> None:
        async with Connection(port) as connection:
            for _ in range(count):
                assert (await connection.post("/v1/chat/completions", body)).status == 200

    loop = asyncio.get_running_loop()
    started = loop.time()
    await asyncio.gather(*(client() for _ in range(CONCURRENCY)))
    return CONCURRENCY * count / (loop.time() - started)


def added(pairs: list[tuple[float, float]], case: str, at: int) -> Row:
    """The percentile `at` of what the gateway adds, in ms, against the stub's own time at that percentile."""
    cut = [1000 * (ours - base) for ours, base in pairs]
    bases = [1000 * base for _, base in pairs]
    value = median(cut) if at == 50 else quantiles(cut, n=100)[at - 1]
    base = median(bases) if at == 50 else quantiles(bases, n=100)[at - 1]
    return Row(
        case=case,
        ours=value,
        peer=base,
        peer_name="the stub directly: its whole answer",
        unit="ms",
        ratio=base / value,
    )


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    count = 100 if options.quick else 500
    with tempfile.TemporaryDirectory() as folder:
        stub = process(
            "-m", "benchmarks.stub", "--delay", str(DELAY), "--chunks", str(CHUNKS), ready=r"on (\d+)"
        )
        with stub as found:
            port = int(found[1])
            config = Path(folder) / "headrace.yaml"
            config.write_text(CONFIG.format(port=0, folder=folder, stub=port))
            serve = ("-m", "gateway.cli", "serve", "--config", str(config))
            with process(*serve, ready=r"http://[\d.]+:(\d+)") as ready:
                gateway = int(ready[1])
                pairs = asyncio.run(sequential(port, gateway, count))
                rates = [
                    (
                        asyncio.run(closed_loop(gateway, count // 20)),
                        asyncio.run(closed_loop(port, count // 20)),
                    )
                    for _ in range(5)
                ]
    ours, peer = (median(side) for side in zip(*rates, strict=True))
    rows = [
        added(pairs, "added p50", 50),
        added(pairs, "added p99", 99),
        Row(
            case=f"closed loop at {CONCURRENCY}",
            ours=ours,
            peer=peer,
            peer_name="the stub directly",
            unit="requests/s",
            ratio=ours / peer,
        ),
    ]
    publish(Report(name="gateway", machine=machine(), rows=rows), options.json)


if __name__ == "__main__":
    main()
