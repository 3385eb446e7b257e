"""Any rank but the first: it runs the steps that it is told, until the first one is gone."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from backends.engine.parallel.group import Group, join_group
from backends.engine.parallel.orders import Load, RowOrder, Step, Tables, read
from backends.engine.runner import ModelRunner, device_of, load_model
from backends.kernels.layout import Span
from backends.kernels.transfer import upload
from backends.layers.shard import Shard


class FollowingRunner:
    """A rank's part of a model, and of the KV cache."""

    def __init__(self, order: Load, group: Group) -> None:
        """Raises as `load_model`."""
        self._runner = ModelRunner(load_model(order.config, order.vocab_size, group).model, order.config)
        self._tables = Tables()

    def run(self, step: Step) -> None:
        """What the first rank runs now too."""
        if step.threads != torch.get_num_threads():
            self._runner.set_threads(step.threads)
        layout = self._runner.layout(self._spans(step.rows))
        with torch.inference_mode():
            self._runner.forward(
                upload(step.ids, layout.device, np.int64), layout, np.array(step.reads, np.int64)
            )

    def _spans(self, rows: Sequence[RowOrder]) -> list[Span]:
        tables = self._tables.heard([row.table for row in rows])
        return [Span(row.start, row.count, table, row.shift) for row, table in zip(rows, tables, strict=True)]


def follow(shard: Shard, store: Path) -> None:
    """Run what stands on the standard input. An exception ends the process, and with it the engine."""
    group, runner = None, None
    for order in read(sys.stdin.buffer):
        match order:
            case Load():
                runner = None  # its memory is free before the next one's is taken
                group = group or join_group(shard, store, device_of(order.config.device, shard))
                runner = FollowingRunner(order, group)
            case Step():
                assert runner is not None, "a step before a model"
                runner.run(order)
