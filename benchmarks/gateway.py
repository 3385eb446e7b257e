"""What the gateway costs on one core, beside the `litellm` proxy and the least that Starlette and httpx can be.

Stubs answer over HTTP and over the engine wire; authentication, limits (in SQLite and in Redis), a session and the
classification are on. All programs run side by side, each has the same core when its turn comes, and the turns
alternate. Traces go to a collector that only reads them, in a process of its own. The peer is made by `make
bench-peers`; without it, and without redis-server, their rows are left out.
"""

import argparse
import asyncio
import gc
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import product
from statistics import median, quantiles
from typing import TypeVar

import msgspec

from backends.catalogue import CATALOGUE
from benchmarks import programs
from benchmarks.load import Target, closed_loop, open_loop, sequential
from benchmarks.programs import Program
from benchmarks.report import Report, Row, arguments, machine, paired, positive, publish
from benchmarks.stub import seed_for
from gateway.tenants import new_key

DELAY = 0.1  # seconds that the stub thinks in an open loop
RATE = 100.0  # requests per second
OPEN, WARM = 2.0, 0.5  # seconds of a turn of it, and of requests before those that open the connections
CHUNKS = 20
CONCURRENCY = 16
TURN, TURNS = 0.5, 7  # seconds of a turn where little is expected, and how many of them stand for one round
LONG, PACE = 120, 0.005  # chunks of a long stream, and seconds between them: each comes alone
ADDED = {50: 2.0, 99: 10.0}  # milliseconds that the gateway may add, by percentile
LEAST = 1e-5  # seconds that are told from none
MODEL = "smollm2-135m-instruct"  # whose tokenizer the stub of the engine wire has

SECRET = b"0" * 64
KEY, STORED = new_key(SECRET)

CONFIG = """
server: {host: 127.0.0.1, port: 0, workers: WORKERS}
secret_env: BENCHMARK_SECRET
state: {folder: "{folder}" STATE}
tiers:
  - {name: 7b, REPLICAS}
  - {name: 70b, REPLICAS}
tenants:
  - name: bench
    keys: [{prefix: PREFIX, digest: DIGEST}]
    limits: {requests_per_minute: 10000000, tokens_per_minute: 1000000000, parallel: 100000}
TELEMETRY
"""
MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Explain in two sentences how a water wheel turns a mill stone."},
]
Measured = TypeVar("Measured")


def config(
    upstream: int, *, state: str = "", telemetry: str = "", wire: bool = False, workers: int = 1
) -> str:
    remote = (
        f"remotes: [{{url: 'http://127.0.0.1:{upstream}/v1', model: stub, kind: vllm, max_in_flight: 8000}}]"
    )
    engine = f"engines: [{{model: {MODEL}, max_sequences: 256, max_waiting: 8000}}]"
    words = {
        "REPLICAS": engine if wire else remote,
        "STATE": state and f", {state}",
        "WORKERS": str(workers),
        "PREFIX": STORED.prefix,
        "DIGEST": STORED.digest,
        "TELEMETRY": telemetry,
    }
    text = CONFIG
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def body(chunks: int = CHUNKS, delay: float = 0.0, pace: float = 0.0) -> bytes:
    return msgspec.json.encode(
        {
            "model": "auto",
            "stream": True,
            "max_tokens": chunks,
            "seed": seed_for(delay, pace),
            "messages": MESSAGES,
        }
    )


class Bench:
    """All programs, by name: `sqlite`, `redis`, `wire`, `traced` and `workers` are ours."""

    def __init__(self, stack: ExitStack, workers: int) -> None:
        """`workers`: how many one more gateway has, each with a core to itself where there are as many."""
        enter = stack.enter_context
        self.stub = enter(programs.stub())
        upstream = self.stub.port
        traced = f"telemetry: {{otlp_endpoint: 'http://127.0.0.1:{enter(programs.collector()).port}'}}"
        self.programs: dict[str, Program] = {
            "sqlite": enter(programs.headrace(config(upstream))),
            "traced": enter(programs.headrace(config(upstream, telemetry=traced))),
            "bare": enter(programs.bare(upstream)),
        }
        if workers > 1:
            several = config(upstream, workers=workers)
            self.programs["workers"] = enter(programs.headrace(several, cores=set(programs.CORES[:workers])))
        try:
            store = enter(programs.redis())
            state = f'redis: "redis://127.0.0.1:{store.port}/0"'
            self.programs["redis"] = enter(programs.headrace(config(upstream, state=state)))
        except FileNotFoundError:
            print("no redis-server here: its rows are left out")
        if CATALOGUE[MODEL].present:
            wire = config(upstream, wire=True)
            self.programs["wire"] = enter(programs.headrace(wire, "benchmarks.wire_stub"))
        else:
            print(
                f"{MODEL} is not here, see `headrace models pull`: the rows of the engine wire are left out"
            )
        if programs.LITELLM.exists():
            self.programs["litellm"] = enter(programs.litellm(upstream))
        else:
            print("no .bench/litellm here, see `make bench-peers`: its rows are left out")

    def target(self, name: str, asked: bytes) -> Target:
        if name == "stub":
            return Target(self.stub.port, asked)
        headers = {"bare": "", "litellm": "authorization: Bearer sk-benchmark\r\n"}
        ours = f"authorization: Bearer {KEY}\r\nx-session-id: new\r\n"
        return Target(self.programs[name].port, asked, headers.get(name, ours))

    def __contains__(self, name: str) -> bool:
        return name in self.programs

    def warm_up(self) -> None:
        for name in self.programs:
            asyncio.run(closed_loop(self.target(name, body()), 4, 1.0))


def pairs(
    names: tuple[str, str], rounds: int, measure: Callable[[str], Measured]
) -> list[tuple[Measured, Measured]]:
    """Both in turn, in an order that alternates."""
    found = []
    for number in range(rounds):
        order = names if number % 2 else names[::-1]
        measured = {name: measure(name) for name in order}
        found.append((measured[names[0]], measured[names[1]]))
    return found


def added_rows(bench: Bench, turns: int) -> list[Row]:
    """An open loop through each of ours, in turn with the stub alone.

    What is added at a percentile is what it is through the gateway less what it is without: client, stub and machine
    have slow moments of their own, which no gateway takes away. They are told, too, as is what bare Starlette and httpx
    add on this processor.
    """

    def loop(name: str) -> list[float]:
        return asyncio.run(open_loop(bench.target(name, body(delay=DELAY)), RATE, OPEN, WARM))

    rows, always = [], []
    for name in ("sqlite", "redis", "wire", "bare"):
        if name in bench:
            found = pairs((name, "stub"), turns, loop)
            through, alone = ([time for turn in times for time in turn] for times in zip(*found, strict=True))
            always += alone
            rows += [_added(f"added p{at}, {name}", at, through, _cut(alone, at)) for at in ADDED]
    return [*rows, _added("added p99, nothing but the stub", 99, always, median(always))]


def _added(case: str, at: int, times: Sequence[float], base: float) -> Row:
    added = 1000 * max(_cut(times, at) - base, LEAST)
    return Row(
        case=case,
        ours=added,
        peer=ADDED[at],
        peer_name=f"what the gateway may add at {RATE:.0f} requests/s",
        unit="ms",
        ratio=ADDED[at] / added,
    )


def _cut(times: Sequence[float], percentile: int) -> float:
    return quantiles(times, n=100)[percentile - 1]


def rate_rows(bench: Bench, rounds: int, seconds: float) -> list[Row]:
    """A closed loop; what is in `against` runs in turn with ours.

    Traces cost less than what the machine's speed drifts by within seconds: their turns are short, and many.
    """

    def rate(name: str, seconds: float = seconds) -> float:
        return asyncio.run(closed_loop(bench.target(name, body()), CONCURRENCY, seconds))

    traces = pairs(("traced", "sqlite"), TURNS * rounds, lambda name: rate(name, TURN))

    against = [
        ("litellm requests/s", "sqlite", "litellm", "litellm proxy"),
        ("bare requests/s", "sqlite", "bare", "bare Starlette and httpx"),
        ("closed loop, redis", "redis", "sqlite", "SQLite instead of Redis"),
        ("closed loop, wire", "wire", "sqlite", "HTTP instead of the engine wire"),
        ("several workers", "workers", "sqlite", "one worker on one core"),
    ]
    return [
        paired("tracing", traces, peer_name="without traces", unit="requests/s"),
        *(
            paired(case, pairs((ours, peer), rounds, rate), peer_name=words, unit="requests/s")
            for case, ours, peer, words in against
            if ours in bench and peer in bench
        ),
    ]


def litellm_added(bench: Bench, rounds: int, count: int) -> Row:
    """One request at a time, since an open loop at our rate is more than the peer can take."""
    asked = body(delay=DELAY)

    def added(name: str) -> float:
        base = median(asyncio.run(sequential(bench.target("stub", asked), count)))
        through = median(asyncio.run(sequential(bench.target(name, asked), count)))
        return 1000 * max(through - base, LEAST)

    found = pairs(("sqlite", "litellm"), rounds, added)
    return paired("litellm added p50", found, peer_name="litellm proxy", unit="ms", higher_is_better=False)


def cpu_rows(bench: Bench, seconds: float) -> list[Row]:
    """CPU time of a short stream and of each further chunk, which each come alone: robust on a busy machine."""
    names = [name for name in ("sqlite", "wire", "traced", "bare", "litellm") if name in bench]
    costs = {name: _costs(bench, name, seconds) for name in names}
    compared = [*product(("sqlite", "wire"), ("bare", "litellm")), ("traced", "sqlite")]
    return [
        Row(
            case=f"{case}, {ours} to {peer}",
            ours=costs[ours][at],
            peer=costs[peer][at],
            peer_name=peer,
            unit="µs",
            ratio=costs[peer][at] / costs[ours][at],
        )
        for ours, peer in compared
        if ours in costs and peer in costs
        for at, case in enumerate(("CPU per request", "CPU per streamed chunk"))
    ]


def _costs(bench: Bench, name: str, seconds: float) -> tuple[float, float]:
    """Microseconds of CPU for a request of one chunk, and for each chunk more."""

    def per_request(chunks: int, pace: float) -> float:
        running, target = bench.programs[name], bench.target(name, body(chunks, pace=pace))
        before = running.cpu
        rate = asyncio.run(closed_loop(target, CONCURRENCY, seconds))
        return 1e6 * (running.cpu - before) / (rate * seconds)

    short, long = per_request(1, 0.0), per_request(LONG, PACE)
    return short, (long - short) / (LONG - 1)


def measure(options: argparse.Namespace) -> list[Row]:
    rounds, seconds = (3, 2.0) if options.quick else (9, 4.0)
    with ExitStack() as stack:
        bench = Bench(stack, options.workers)
        bench.warm_up()
        gc.freeze()  # a client that goes through its modules would be taken for a slow gateway
        rows = added_rows(bench, rounds)
        rows += rate_rows(bench, rounds, seconds)
        if "litellm" in bench:
            rows.append(litellm_added(bench, rounds, 20 if options.quick else 50))
        return rows + cpu_rows(bench, 2 * seconds)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--workers", type=positive, default=1, help="compare a gateway of so many, on as many cores, with one"
    )
    options = parser.parse_args()
    os.sched_setaffinity(0, programs.OTHERS)
    cores = {"gateway cores": sorted(programs.MEASURED), "other cores": sorted(programs.OTHERS)}
    publish(Report(name="gateway", machine=machine() | cores, rows=measure(options)), options.json)


if __name__ == "__main__":
    main()
