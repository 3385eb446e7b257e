"""An engine's process: one thread that receives, steps, answers and publishes.

While there is work it looks into its mailbox between two steps and never waits there; without work it sleeps in
the kernel until a message comes, and uses no CPU. Everything that happens to an engine happens in this loop.
"""

import argparse
import gc
import logging
import os
import re
import secrets
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec

from backends.engine.faults import Fault, fault_from
from backends.engine.lease import Lease
from backends.engine.mailbox import Mailbox
from backends.parentage import die_with
from backends.wire import (
    Abort,
    EngineConfig,
    Evicted,
    FromEngine,
    Load,
    Output,
    Outputs,
    Refused,
    Snapshot,
    Stored,
    Submit,
    Subscribe,
    ToEngine,
    decode_to_engine,
    encode,
    socket_path,
)

LOAD_INTERVAL = 0.1  # seconds between two Loads of a busy engine
# Bytes that a subscriber has not read, from which on it is told nothing new until it has.
BEHIND = 1024 * 1024
SPIN_COUNT = (
    2000  # of a waiting OpenMP thread: short, then it sleeps and leaves its core to the other engines
)

_log = logging.getLogger(__name__)


class Steps(Protocol):
    """What the loop needs of an engine; `backends.engine.engine.Engine` has it."""

    @property
    def has_work(self) -> bool: ...

    def submit(self, sender: bytes, submit: Submit) -> Refused | None: ...

    def abort(self, sender: bytes, id: str) -> None: ...

    def abort_sender(self, sender: bytes) -> None: ...

    def step(self) -> list[tuple[bytes, Output]]: ...

    def refusals(self) -> list[tuple[bytes, Refused]]: ...

    def cache_changes(self) -> tuple[list[bytes], list[bytes]]: ...

    def cache_keys(self) -> list[bytes]: ...

    def load(self) -> Load: ...


class EngineLoop:
    """Joins an engine to its mailbox: what a sender that is gone has submitted is aborted."""

    def __init__(
        self,
        config: EngineConfig,
        engine: Steps,
        set_threads: Callable[[int], None],
        fault: Fault | None = None,
    ) -> None:
        """Raises ValueError on a bad path of the socket, OSError when socket or lease cannot be opened."""
        self._config = config
        self._engine = engine
        self._set_threads = set_threads
        self._fault = fault
        self._lease = Lease(Path(config.lease), config.cores) if config.lease else None
        self._threads = 0
        self._incarnation = secrets.token_hex(8)
        self._subscribers: dict[bytes, bool] = {}  # by sender: whether it is told of the cache, too
        self._behind: set[bytes] = set()  # of these
        self._load: Load | None = None
        self._load_time = 0.0
        self._worked = False
        self._mailbox = Mailbox(socket_path(config.socket))
        self._mailbox.bind()

    def run(self) -> NoReturn:
        """For ever. An exception out of the engine ends it."""
        while True:
            self._receive()
            if self._engine.has_work:
                if not self._worked:
                    self._tell_load()  # before a step that may never end, so that somebody notices
                self._step()
            self._publish()

    def _receive(self) -> None:
        """Take what has arrived. With nothing to do, sleep until something does."""
        rests = not self._engine.has_work
        if rests and self._lease is not None:
            self._lease.release()
        for sender, body in self._mailbox.receive(wait=rests):
            if body is None:
                self._lose(sender)
            else:
                self._handle(sender, body)

    def _lose(self, sender: bytes) -> None:
        self._subscribers.pop(sender, None)
        self._behind.discard(sender)
        self._engine.abort_sender(sender)

    def _handle(self, sender: bytes, body: bytes) -> None:
        """A message that makes no sense is dropped; it can come from nobody whose answer we could save."""
        try:
            message = decode_to_engine(body)
        except msgspec.MsgspecError as error:
            _log.warning("dropped a malformed message of %d bytes: %s", len(body), error)
        else:
            self._apply(sender, message)

    def _apply(self, sender: bytes, message: ToEngine) -> None:
        match message:
            case Submit():
                refused = self._engine.submit(sender, message)
                if refused is not None:
                    self._answer(sender, refused)
            case Abort(id=id):
                self._engine.abort(sender, id)
            case Subscribe(keys=keys):
                self._subscribers[sender] = keys
                self._tell_all(sender)

    def _step(self) -> None:
        self._worked = True
        self._share_cores()
        outputs: dict[bytes, list[Output]] = defaultdict(list)
        for sender, output in self._engine.step():
            outputs[sender].append(output)
        self._tell_changes()  # first, so that who has its answer and asks on finds what that has left in the cache
        for sender, items in outputs.items():
            self._answer(sender, Outputs(items))
        for sender, refused in self._engine.refusals():
            self._answer(sender, refused)
        if self._fault is not None:
            self._fault.count(sum(len(output.ids) for items in outputs.values() for output in items))

    def _share_cores(self) -> None:
        threads = self._config.cores
        if self._lease is not None:
            self._lease.take()
            threads = self._lease.threads()
        if threads != self._threads:
            self._set_threads(threads)
            self._threads = threads

    def _answer(self, sender: bytes, message: FromEngine) -> None:
        self._mailbox.send(sender, encode(message))

    def _publish(self) -> None:
        """Tell the subscribers what has changed, and all there is where one had not read and now has."""
        self._tell_changes()
        self._report()
        for sender in [sender for sender in self._behind if not self._mailbox.backlog(sender)]:
            self._behind.discard(sender)
            self._tell_all(sender)

    def _tell_changes(self) -> None:
        name = self._config.name
        stored, evicted = self._engine.cache_changes()
        if evicted:
            self._tell(Evicted(engine=name, keys=evicted))
        if stored:
            self._tell(Stored(engine=name, keys=stored))

    def _report(self) -> None:
        """Publish the load: when the engine falls idle, else on change and not too often.

        It is told too when the engine takes up work, see `run`; so the last one always says whether it works.
        """
        fell_idle = self._worked and not self._engine.has_work
        self._worked = self._engine.has_work
        if fell_idle:
            self._tell_load()
        elif time.monotonic() - self._load_time >= LOAD_INTERVAL:
            self._tell_load(unless=self._load)

    def _tell_load(self, unless: Load | None = None) -> None:
        load = self._loaded()
        if load != unless:
            self._tell(load)
            self._load, self._load_time = load, time.monotonic()

    def _loaded(self) -> Load:
        return msgspec.structs.replace(self._engine.load(), incarnation=self._incarnation)

    def _tell(self, event: Load | Stored | Evicted) -> None:
        """Whoever wants to know and reads what it is told."""
        body, of_the_cache = encode(event), not isinstance(event, Load)
        for sender, keys in self._subscribers.items():
            if sender in self._behind or (of_the_cache and not keys):
                continue
            if self._mailbox.backlog(sender) > BEHIND:
                self._behind.add(sender)
            else:
                self._mailbox.send(sender, body)

    def _tell_all(self, sender: bytes) -> None:
        if self._subscribers[sender]:
            self._mailbox.send(sender, encode(self._snapshot()))
        self._mailbox.send(sender, encode(self._loaded()))

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            engine=self._config.name, block_size=self._config.block_size, keys=self._engine.cache_keys()
        )


def main(build: Callable[[EngineConfig], tuple[Steps, Callable[[int], None]]]) -> NoReturn:
    """An engine process, from its command line `CONFIG.json [--parent PID]` to its end.

    `build` makes the engine, and the function that sets how many threads it computes with. Raises whatever keeps it
    from starting or running; the interpreter then prints that and exits with status 1, without a traceback where a
    field of the configuration is to blame, or a file. With `--parent` it dies with that process.
    SIGTERM and SIGINT keep their default effect: they end the process at once, whatever it computes. A handler of our
    own would wait for the end of a long kernel, and a signal just before the loop falls asleep would be lost.
    """
    parser = argparse.ArgumentParser(description="Run one engine until a signal ends it.")
    parser.add_argument("config", type=Path, help="JSON file, see backends.wire.EngineConfig")
    parser.add_argument("--parent", type=int, help="the process to die with (Linux)")
    options = parser.parse_args()
    if options.parent is not None:
        die_with(options.parent)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    config = msgspec.json.decode(options.config.read_bytes(), type=EngineConfig)
    os.environ.update(thread_environment(max(1, config.cores // config.tensor_parallel)))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # instead of a KeyboardInterrupt
    try:
        engine, set_threads = build(config)
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) or _of_the_operator(error):
            sys.exit(str(error))
        raise
    loop = EngineLoop(config, engine, set_threads, fault_from(os.environ))
    gc.collect()
    gc.freeze()  # libraries are a quarter of a million objects; going through them would hold up a step for long
    loop.run()


def _of_the_operator(error: ValueError) -> bool:
    """Whether it tells of a model's file, or begins with a field of the configuration."""
    from backends.models.stored import CheckpointError  # which imports torch, as has been done by now

    named = re.split("[.:]", str(error), maxsplit=1)[0] in EngineConfig.__struct_fields__
    return isinstance(error, CheckpointError) or named


def thread_environment(cores: int) -> dict[str, str]:
    """How the thread pools of the numeric libraries behave in a process of an engine; they never spin for long."""
    return {
        "OMP_NUM_THREADS": str(cores),
        "GOMP_SPINCOUNT": str(SPIN_COUNT),
        "MKL_NUM_THREADS": str(cores),
        "NUMBA_NUM_THREADS": str(cores),
        "OPENBLAS_NUM_THREADS": "1",
    }
