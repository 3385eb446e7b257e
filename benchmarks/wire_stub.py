"""The gateway over the engine wire, with engines that only say what they are asked for, as `benchmarks.stub` does.

`python -m benchmarks.wire_stub serve --config FILE` is `headrace serve` with this very file for its engines' program.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import patch

from backends.engine.process import main as engine_main
from backends.wire import EngineConfig, Load, Output, Refused, Submit, Timings
from benchmarks.stub import manner

CORES = "BENCHMARK_ENGINE_CORES"  # variable with the cores that the engines use, not the gateway's
TICK = 0.00005  # seconds at most that a message waits for a step, which is the doing of the stub alone
TOKEN = 262  # some word


class StubEngine:
    """Says `max_tokens` tokens in the manner that the seed asks for."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._running: dict[tuple[bytes, str], tuple[Submit, int]] = {}  # with the tokens said
        self._due: dict[tuple[bytes, str], float] = {}  # when the next token is said
        self._steps = 0

    @property
    def has_work(self) -> bool:
        return bool(self._running)

    def submit(self, sender: bytes, submit: Submit) -> Refused | None:
        self._running[sender, submit.id] = submit, 0
        self._due[sender, submit.id] = time.monotonic() + manner(submit.sampling.seed)[0]
        return None

    def abort(self, sender: bytes, id: str) -> None:
        self._running.pop((sender, id), None)
        self._due.pop((sender, id), None)

    def abort_sender(self, sender: bytes) -> None:
        for key in [key for key in self._running if key[0] == sender]:
            self.abort(*key)

    def step(self) -> list[tuple[bytes, Output]]:
        self._steps += 1
        now = time.monotonic()
        due = [key for key, at in self._due.items() if at <= now]
        if not due:
            time.sleep(min(TICK, min(self._due.values()) - now))
        return [(key[0], output) for key in due for output in self._due_outputs(key, now)]

    def _due_outputs(self, key: tuple[bytes, str], now: float) -> Iterator[Output]:
        """One token, or all of them at once where no time passes between them, as `benchmarks.stub` writes chunks."""
        paced = manner(self._running[key][0].sampling.seed)[1] > 0
        yield self._say(key, now)
        while key in self._running and not paced:
            yield self._say(key, now)

    def _say(self, key: tuple[bytes, str], now: float) -> Output:
        submit, said = self._running[key]
        last = said + 1 >= submit.sampling.max_tokens
        if last:
            self.abort(*key)
        else:
            self._running[key] = submit, said + 1
            self._due[key] = now + manner(submit.sampling.seed)[1]
        finish, timings = ("length", Timings(arrived=now)) if last else (None, None)
        return Output(id=submit.id, ids=[TOKEN], finish=finish, timings=timings)  # type: ignore[arg-type]

    def refusals(self) -> list[tuple[bytes, Refused]]:
        return []

    def cache_changes(self) -> tuple[list[bytes], list[bytes]]:
        return [], []

    def cache_keys(self) -> list[bytes]:
        return []

    def load(self) -> Load:
        return Load(
            engine=self._config.name,
            incarnation="",
            running=len(self._running),
            waiting=0,
            blocks_total=8,
            blocks_free=8,
            blocks_cached=0,
            prompt_tokens=0,
            cached_tokens=0,
            generation_tokens=0,
            prefix_queries=0,
            prefix_hits=0,
            preemptions=0,
            steps=self._steps,
            step_tokens=0,
            step_rows=0,
            finished={},
        )


def build(config: EngineConfig) -> tuple[StubEngine, Callable[[int], None]]:
    if cores := os.environ.get(CORES):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    return StubEngine(config), lambda _: None


def gateway_main() -> int:
    from backends.supervisor import Supervisor
    from gateway import cli, engines

    command = (sys.executable, "-m", "benchmarks.wire_stub")
    with patch.object(engines, "Supervisor", partial(Supervisor, command=command)):
        return cli.main(sys.argv[1:])


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        sys.exit(gateway_main())
    engine_main(build)
