"""Where the gateway's CPU time goes: microseconds of a request by layer, and of each further chunk of its stream.

The process is stopped many times a second and asked what it is doing; the innermost call that belongs to a layer
says whose time it is. So a layer has the libraries that it calls, and what nobody called is the event loop's. CPU time
is counted, not waiting: a busy machine makes it slower, not something else.
"""

import argparse
import asyncio
import os
import signal
import tempfile
from collections import Counter
from pathlib import Path

import msgspec

from benchmarks import programs, sampled
from benchmarks.gateway import CONCURRENCY, KEY, LONG, PACE, body, config
from benchmarks.load import Target, closed_loop
from benchmarks.report import Report, Row, arguments, machine, publish

MOST = 999.0  # ratio that is told from none
Costs = dict[str, float]  # microseconds by layer
REST = "event loop, sockets, other threads"
# By the beginning of a module's path; the first that fits.
LAYERS = {
    "gateway/watching": "watching the client",
    "gateway/drain": "watching the client",
    "gateway/api/": "dialect and SSE",
    "gateway/protocol": "HTTP server",
    "gateway/gathering": "HTTP server",
    "uvicorn/": "HTTP server",
    "gateway/middleware": "middleware and keys",
    "gateway/exchange": "middleware and keys",
    "gateway/tenants": "middleware and keys",
    "gateway/credentials": "middleware and keys",
    "starlette/": "middleware and keys",
    "gateway/limits": "limits",
    "gateway/metering": "limits",
    "gateway/account": "limits",
    "gateway/gcra": "limits",
    "gateway/periods": "limits",
    "sessions/database": "",  # whoever asks it
    "sessions/": "sessions",
    "gateway/recall": "sessions",
    "gateway/turns": "sessions",
    "classifier/": "classifier",
    "gateway/desk": "routing",
    "gateway/routing": "routing",
    "gateway/tradeoff": "routing",
    "gateway/loops": "routing",
    "gateway/telemetry": "traces",
    "gateway/span": "traces",
    "gateway/conventions": "traces",
    "gateway/otlp_metrics": "traces",
    "opentelemetry/": "traces",
    "gateway/metrics": "metrics, log and records",
    "gateway/genai_metrics": "metrics, log and records",
    "gateway/observation": "metrics, log and records",
    "gateway/logs": "metrics, log and records",
    "gateway/dashboard/": "metrics, log and records",
    "gateway/ledger": "metrics, log and records",
    "gateway/records": "metrics, log and records",
    "gateway/series": "metrics, log and records",
    "gateway/cascade_metrics": "metrics, log and records",
    "prometheus_client/": "metrics, log and records",
    "gateway/guard": "",
    "gateway/pulse": "",
    "gateway/cli": "",
    "gateway/server": "",
    "gateway/": "dispatch and cascade",
    "prefixcache/": "dispatch and cascade",
    "backends/": "backend",
    "httpx/": "backend",
}


def layer_of(stack: str) -> str:
    """`stack`: calls, the innermost first."""
    for call in stack.split():
        layer = next((name for path, name in LAYERS.items() if call.startswith(path)), "")
        if layer:
            return layer
    return REST


def by_layer(samples: dict[str, int], whole: float) -> Costs:
    """`whole` shared out among the layers."""
    seen: Counter[str] = Counter()
    for stack, times in samples.items():
        seen[layer_of(stack)] += times
    return {layer: whole * times / seen.total() for layer, times in seen.items()}


class Sampling:
    """Runs loads against a gateway that is looked at."""

    def __init__(self, upstream: int, telemetry: str, seconds: float, stacks: Path | None) -> None:
        self._config = config(upstream, telemetry=telemetry)
        self._seconds = seconds
        self._stacks = stacks

    def costs(self, chunks: int, pace: float) -> Costs:
        """Microseconds of a request of so many chunks, by layer."""
        headers = f"authorization: Bearer {KEY}\r\nx-session-id: new\r\n"
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "samples.json"
            with programs.headrace(self._config, "benchmarks.sampled", {sampled.FILE: str(file)}) as gateway:
                target = Target(gateway.port, body(chunks, pace=pace), headers)
                asyncio.run(closed_loop(target, CONCURRENCY, 1.0))
                os.kill(gateway.pid, signal.SIGUSR1)
                before = gateway.cpu
                rate = asyncio.run(closed_loop(target, CONCURRENCY, self._seconds))
                whole = 1e6 * (gateway.cpu - before) / (rate * self._seconds)
            samples = msgspec.json.decode(file.read_bytes(), type=dict[str, int])
        if self._stacks is not None:
            (self._stacks / f"stacks-{chunks}.json").write_bytes(msgspec.json.encode(samples))
        return by_layer(samples, whole)


def rows(short: Costs, long: Costs) -> list[Row]:
    """`long`: of a request of LONG chunks."""
    more = {layer: (long.get(layer, 0.0) - short.get(layer, 0.0)) / (LONG - 1) for layer in {*short, *long}}
    found = []
    for case, costs in (("request", dict(short)), ("further chunk", more)):
        whole = sum(costs.values())
        costs["all layers"] = whole
        for layer, cost in sorted(costs.items(), key=lambda item: -item[1]):
            found.append(
                Row(
                    case=f"{case}: {layer}", ours=cost, peer=whole, peer_name=f"the whole {case}", unit="µs",
                    ratio=whole / max(cost, whole / MOST),
                )
            )  # fmt: skip
    return found


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--traced", action="store_true", help="with traces, all of them sampled")
    parser.add_argument("--stacks", type=Path, help="write the stacks that were seen into this folder")
    options: argparse.Namespace = parser.parse_args()
    if options.stacks is not None and not options.stacks.is_dir():
        parser.error(f"argument --stacks: there is no folder {options.stacks}")
    os.sched_setaffinity(0, programs.OTHERS)
    with programs.stub() as stub:
        telemetry = f"telemetry: {{otlp_endpoint: 'http://127.0.0.1:{stub.port}'}}" if options.traced else ""
        sampling = Sampling(stub.port, telemetry, 4.0 if options.quick else 15.0, options.stacks)
        found = rows(sampling.costs(1, 0.0), sampling.costs(LONG, PACE))
    publish(Report(name="layers", machine=machine(), rows=found), options.json)


if __name__ == "__main__":
    main()
