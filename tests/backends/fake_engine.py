"""An engine process without a model: `python fake_engine.py CONFIG.json [--parent PID]`.

The loop, the sockets and the process are the real ones. The engine says its prompt (bytes as ids) again and again,
one token a step, until `max_tokens`. Some prompts are orders, see `submit` and `_next`; so are some model names,
see `build`. It prints how many threads it is told to use.
"""

import os
import signal
import time
from collections.abc import Callable

from backends.engine.process import main
from backends.wire import EngineConfig, Load, Output, Refused, Submit, Timings

STEP, SLOW_STEP = 0.002, 0.8  # seconds
CACHE = 4  # keys


class FakeEngine:
    def __init__(self, config: EngineConfig) -> None:
        self._name = config.name
        self._pause = {"quick": 0.0, "slow": SLOW_STEP}.get(config.model, STEP)
        self._running: dict[tuple[bytes, str], Submit] = {}
        self._made: dict[tuple[bytes, str], int] = {}
        self._keys: list[bytes] = []
        self._stored: list[bytes] = []
        self._evicted: list[bytes] = []
        self._refusals: list[tuple[bytes, Refused]] = []
        self._tokens = 0
        self._steps = 0

    @property
    def has_work(self) -> bool:
        return bool(self._running)

    def submit(self, sender: bytes, submit: Submit) -> Refused | None:
        match bytes(submit.prompt):
            case b"too long":
                return Refused(id=submit.id, code="context_length_exceeded", message="8 tokens of at most 7")
            case b"too many":
                return Refused(id=submit.id, code="overloaded", message="the queue is full", retry_after=7.5)
        self._running[sender, submit.id] = submit
        self._made[sender, submit.id] = 0
        self._store(bytes(submit.prompt))
        return None

    def abort(self, sender: bytes, id: str) -> None:
        self._running.pop((sender, id), None)

    def abort_sender(self, sender: bytes) -> None:
        for key in [key for key in self._running if key[0] == sender]:
            del self._running[key]

    def step(self) -> list[tuple[bytes, Output]]:
        time.sleep(self._pause)
        self._steps += 1
        outputs = []
        for (sender, id), submit in list(self._running.items()):
            if bytes(submit.prompt) == b"too odd":
                message = "sampling.grammar: it makes no sense"
                self._refusals.append((sender, Refused(id=id, code="invalid", message=message)))
                del self._running[sender, id]
                continue
            output = self._next(sender, submit)
            outputs.append((sender, output))
            if output.finish is not None:
                del self._running[sender, id]
        return outputs

    def _next(self, sender: bytes, submit: Submit) -> Output:
        match bytes(submit.prompt):
            case b"crash":
                raise RuntimeError("the engine has a bug")
            case b"fail":
                return Output(id=submit.id, finish="error", error="the device is on fire")
            case b"late":
                return Output(id=submit.id, finish="deadline")
        made = self._made[sender, submit.id]
        self._made[sender, submit.id] += 1
        self._tokens += 1
        ended = made + 1 >= submit.sampling.max_tokens
        return Output(
            id=submit.id,
            ids=[submit.prompt[made % len(submit.prompt)]],
            finish="length" if ended else None,
            cached=len(submit.prompt) - 1,
            timings=Timings(arrived=1.0, finished=2.0) if ended else None,
        )

    def refusals(self) -> list[tuple[bytes, Refused]]:
        refusals, self._refusals = self._refusals, []
        return refusals

    def cache_changes(self) -> tuple[list[bytes], list[bytes]]:
        changes = self._stored, self._evicted
        self._stored, self._evicted = [], []
        return changes

    def cache_keys(self) -> list[bytes]:
        return list(self._keys)

    def load(self) -> Load:
        return Load(
            engine=self._name,
            incarnation="",
            running=len(self._running),
            waiting=0,
            blocks_total=8,
            blocks_free=8,
            blocks_cached=0,
            prompt_tokens=0,
            cached_tokens=0,
            generation_tokens=self._tokens,
            prefix_queries=0,
            prefix_hits=0,
            preemptions=0,
            steps=self._steps,
            step_tokens=0,
            step_rows=0,
            finished={},
        )

    def _store(self, key: bytes) -> None:
        if key in self._keys:
            return
        self._keys.append(key)
        self._stored.append(key)
        if len(self._keys) > CACHE:
            self._evicted.append(self._keys.pop(0))


def build(config: EngineConfig) -> tuple[FakeEngine, Callable[[int], None]]:
    match os.environ.get("FAKE_MODEL", config.model):  # so that a second life can differ from the first
        case "broken":
            raise ValueError("model 'broken' has no weights")
        case "stuck":
            print("loading for a minute", flush=True)
            time.sleep(60)
        case "chatty":
            print("hello")
            print("x" * 300_000, flush=True)
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return FakeEngine(config), lambda threads: print("threads", threads, flush=True)


if __name__ == "__main__":
    main(build)
