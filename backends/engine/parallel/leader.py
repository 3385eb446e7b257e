"""The first rank: the engine's own process, which has a scheduler and a sampler, and tells the others each step."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from backends.engine.parallel.group import join_group, leave_group
from backends.engine.parallel.orders import Load, Order, RowOrder, Step, Tables, write
from backends.engine.runner import Loaded, ModelRunner, describe, device_of, load_model
from backends.kernels.layout import Layout
from backends.layers.parallel import Ranks
from backends.layers.shard import Shard
from backends.models.decoder import Decoder
from backends.wire import EngineConfig, ranks_path

COMMAND = (sys.executable, "-m", "backends.engine.parallel")  # and rank, ranks, parent, store
GRACE = 1.0  # seconds for the death of a rank to be noticed, before what it made fail here is taken for the reason
LEAVE = 10.0  # seconds that a rank has to end by itself

_log = logging.getLogger(__name__)


class Workers:
    """The processes of all ranks but the first. They end with this one, however it ends.

    `on_loss` is told, in another thread, why the ranks can run no more steps. By default that ends this process at
    once, whatever it is waiting for, so that whoever supervises the engine starts all of it again.
    """

    def __init__(
        self,
        ranks: int,
        store: Path,
        on_loss: Callable[[str], None] | None = None,
        join: Callable[[Shard, Path, torch.device], Ranks] = join_group,
    ) -> None:
        """`store`: a file to be made, through which the ranks find each other; `join`: how the first one does."""
        store.unlink(missing_ok=True)  # of an earlier life
        self.ranks = ranks
        self._store = store
        self._on_loss = on_loss or _end
        self._join = join
        self._group: Ranks | None = None
        self._closing = False
        self._lost = threading.Event()
        self._processes = [_started(Shard(rank, ranks), store) for rank in range(1, ranks)]
        for rank, process in enumerate(self._processes, 1):
            threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()

    @property
    def pids(self) -> list[int]:
        """From rank 1 on."""
        return [process.pid for process in self._processes]

    def load(self, config: EngineConfig, vocab_size: int | None = None) -> tuple["LeadingRunner", Loaded]:
        """All ranks load their part of a model, instead of the one before. Raises as `load_model`."""
        self.tell(Load(config, vocab_size))
        if self._group is None:
            shard = Shard(0, self.ranks)
            self._group = self._join(shard, self._store, device_of(config.device, shard))
        loaded = load_model(config, vocab_size, self._group)
        runner = LeadingRunner(loaded.model, config, self)
        runner.warm_up()
        return runner, loaded

    def tell(self, order: Order) -> int:
        """How many bytes each rank was told. Raises OSError where a rank is gone."""
        body = write(order)
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(body)
            process.stdin.flush()
        return len(body)

    def fail(self, error: Exception) -> NoReturn:
        """A step has failed here: the others are somewhere in it. Raises `error`, if that is survived."""
        if not self._lost.wait(GRACE):
            _log.error("a step failed among %d ranks", self.ranks, exc_info=error)
            self._on_loss(f"rank 0 failed: {error}")
        raise error

    def close(self) -> None:
        """Returns when all processes have ended."""
        self._closing = True
        if self._group is not None:
            leave_group()
        for process in self._processes:
            _leave(process)
        self._store.unlink(missing_ok=True)

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if not self._closing:
            self._lost.set()
            how = f"exit status {code}" if code >= 0 else signal.Signals(-code).name
            self._on_loss(f"rank {rank} of {self.ranks} ended with {how}")


class LeadingRunner(ModelRunner):
    """A ModelRunner that has the others run what it runs. It records no graphs, and no step follows another one whose
    tokens are still on the GPU: each is told anew."""

    def __init__(self, model: Decoder, config: EngineConfig, workers: Workers) -> None:
        self._workers = workers
        self._tables = Tables()
        self._threads = torch.get_num_threads()
        self.told = 0  # bytes, to each rank, since the start
        super().__init__(model, config)

    def forward(self, ids: torch.Tensor, layout: Layout, reads: NDArray[np.int64]) -> torch.Tensor:
        """As ModelRunner; where it fails, the engine ends."""
        try:
            tables = self._tables.told(layout.spans)
            rows = [
                RowOrder(span.start, span.count, span.shift, table)
                for span, table in zip(layout.spans, tables, strict=True)
            ]
            self.told += self._workers.tell(Step(rows, ids.tolist(), reads.tolist(), self._threads))
            return super().forward(ids, layout, reads)
        except Exception as error:
            self._workers.fail(error)

    @property
    def overlap(self) -> None:
        """The others have to be told the tokens of each step."""
        return None

    def set_threads(self, threads: int) -> None:
        """The ranks share the threads, and each has one at least."""
        self._threads = max(1, threads // self._workers.ranks)
        super().set_threads(self._threads)


def lead(
    config: EngineConfig, vocab_size: int | None = None
) -> tuple[LeadingRunner, frozenset[int], int, int]:
    """As `load_runner`, for several ranks: they are started, and end with this process.

    What can be wrong without a look at the tensors, such as what the ranks cannot divide, is raised before they start.
    """
    describe(config, Shard(0, config.tensor_parallel))
    workers = Workers(config.tensor_parallel, ranks_path(config.socket))
    runner, loaded = workers.load(config, vocab_size)
    return runner, loaded.eos, loaded.model.vocab_size, loaded.length


def _started(shard: Shard, store: Path) -> subprocess.Popen[bytes]:
    numbers = [str(number) for number in (shard.rank, shard.ranks, os.getpid())]
    return subprocess.Popen([*COMMAND, *numbers, str(store)], stdin=subprocess.PIPE)


def _leave(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(LEAVE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end(reason: str) -> None:
    _log.critical("%s: the engine ends", reason)
    logging.shutdown()
    os._exit(1)  # not by an exception: the main thread may wait inside of a kernel for a rank that is gone
