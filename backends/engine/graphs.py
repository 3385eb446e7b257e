"""Decode steps as graphs: all that one queues on a GPU is recorded once and then queued again by a single call.

A graph has its sizes and addresses for good, so there is one for each of a few numbers of rows, over memory of its own
that every step fills anew; rows that are none are at position -1, see `kernels.device_batch`: nothing is stored of
them, so that they need no block. Everything that differs between steps is read by kernels from that memory.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from backends.kernels.device_batch import ALIGNED, DeviceBatch
from backends.kernels.layout import KVCache, Layout, Span
from backends.kernels.reference import Kernels
from backends.kernels.transfer import refill, upload
from backends.models.decoder import Decoder


class Graph(Protocol):
    """Recorded work, and what it leaves in memory that stays the same."""

    @property
    def result(self) -> torch.Tensor: ...

    def replay(self) -> None:
        """Queue the work again, over what its inputs hold when it is its turn."""
        ...


Capture = Callable[[Callable[[], torch.Tensor]], Graph]


class CudaGraph:
    """A `Graph` on the current GPU. Graphs that never run at once share the memory of what they compute on the way."""

    def __init__(
        self, work: Callable[[], torch.Tensor], pool: tuple[int, int], stream: torch.cuda.Stream
    ) -> None:
        """`stream`: what records; the same one for all graphs of a pool."""
        # Compiles what is compiled at first use, and lets libraries allocate, some of them for each stream.
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, stream=stream):
            self.result = work()

    def replay(self) -> None:
        self._graph.replay()


def capture_on(device: torch.device) -> Capture | None:
    """How steps are recorded on `device`; None where they cannot be."""
    if device.type != "cuda":
        return None
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
    return lambda work: CudaGraph(work, pool, stream)


def sizes(most: int) -> list[int]:
    """The numbers of rows that have a graph: 1, 2, 4, then multiples of 8, up to the first one that is `most` or more.

    The largest is the first to be recorded: what the others need fits in its memory.
    """
    known = [1, 2, 4, *range(8, most + 8, 8)]
    return [size for size, below in zip(known, [0, *known], strict=False) if below < most][::-1]


class DecodeGraphs:
    """A graph for each size. One after another: they share their memory."""

    def __init__(
        self, model: Decoder, kernels: Kernels, cache: KVCache, positions: int, most: int, capture: Capture
    ) -> None:
        """For at most `most` rows of sequences of at most `positions` tokens.

        Only before the first real batch, as what records may run what it records.
        """
        self._steps: dict[int, _Step] = {}
        with torch.inference_mode():
            for size in sizes(most):
                self._steps[size] = _Step(model, kernels, cache, positions, size, capture)

    def run(self, ids: torch.Tensor, layout: Layout) -> torch.Tensor | None:
        """Logits [rows, vocabulary] of a batch with one token in each row, until the next call; None for others."""
        rows = len(layout.spans)
        fitting = [size for size in self._steps if size >= rows]
        if len(ids) != rows or not fitting:
            return None
        return self._steps[min(fitting)].run(ids, layout)


class _Step:
    """One graph and its inputs, in one piece of memory: ids, positions and angles, then the tables of blocks."""

    def __init__(
        self, model: Decoder, kernels: Kernels, cache: KVCache, positions: int, size: int, capture: Capture
    ) -> None:
        layout = Layout([Span(0, 1, [0])] * size, cache)
        own = DeviceBatch.of(layout, short=1, long=1, border=2)
        blocks = -(-positions // cache.block_size)
        self._tables = torch.zeros(size, blocks, dtype=torch.int32, device=layout.device)
        columns = -(-size // ALIGNED) * ALIGNED
        self._inputs = torch.zeros(3, columns, dtype=torch.int32, device=layout.device)
        self._inputs[1] = -1
        ids, places, angles = self._inputs[:, :size].unbind()
        layout.device_batch = DeviceBatch(places, angles, own.rows, self._tables, own.short, own.long)
        wanted = upload(range(size), layout.device, np.int64)
        self._kept = layout, wanted  # a graph knows addresses only
        self._graph = capture(lambda: model.forward(ids, layout, wanted, kernels))

    def run(self, ids: torch.Tensor, layout: Layout) -> torch.Tensor:
        rows, blocks = layout.tables.shape
        inputs = np.zeros(self._inputs.shape, np.int32)
        inputs[1] = -1
        inputs[1:, :rows] = layout.positions, layout.angles
        refill(self._inputs, inputs)
        self._inputs[0, :rows].copy_(ids)
        self._tables[:rows, :blocks].copy_(upload(layout.tables, layout.device))
        self._graph.replay()
        return self._graph.result[:rows]
