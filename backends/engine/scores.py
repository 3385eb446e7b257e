"""How likely the model itself held tokens: the log-softmax of its logits, before anything is done to them."""

from dataclasses import dataclass

import numpy as np
import torch

from backends.engine.batch import Batch
from backends.kernels.layout import Ints, Layout
from backends.kernels.transfer import Download, upload
from backends.wire import Score

PIECE = 32  # rows in float32 at a time; a row of a large vocabulary takes a megabyte with its temporaries


@dataclass(frozen=True, slots=True)
class Measured:
    """On their way from the device, of N tokens: `chosen` [N]; `values`, `ids` [N, K] of the likeliest, best first."""

    chosen: Download
    values: Download
    ids: Download

    def scores(self, tops: list[int]) -> list[Score]:
        """`tops`: with how many alternatives each is told, at most K."""
        arrived = (each.wait().tolist() for each in (self.chosen, self.values, self.ids))
        columns = zip(*arrived, tops, strict=True)
        return [
            Score(chosen, list(zip(ids[:top], values[:top], strict=True)))
            for chosen, values, ids, top in columns
        ]


class Scoring:
    """Which tokens of a batch are scored: all targets, and the sampled ones of rows that ask.

    The batch's logits are taken to be those of its picks, in order, followed by those of `reads`.
    """

    def __init__(self, batch: Batch, layout: Layout) -> None:
        picked = [pick.row for pick in batch.picks]
        asking = [place for place, index in enumerate(picked) if batch.rows[index].top is not None]
        targets = [
            (index, place) for index, row in enumerate(batch.rows) for place in range(len(row.targets))
        ]
        self._batch = batch
        self._owners = [index for index, _ in targets] + [picked[place] for place in asking]
        self._asking = layout.tensor(np.array(asking, np.int64))
        self._targets = [token for row in batch.rows for token in row.targets]
        self._at = layout.tensor(
            np.array([*range(len(picked), len(picked) + len(targets)), *asking], np.int64)
        )
        self.reads: Ints = np.array([layout.firsts[index] + place for index, place in targets], np.int64)

    def measure(self, logits: torch.Tensor, sampled: torch.Tensor) -> Measured:
        """`sampled`: the ids of the picks."""
        targets = upload(self._targets, sampled.device, np.int64)
        top = max(row.top or 0 for row in self._batch.rows)
        return measure(logits, self._at, torch.cat([targets, sampled[self._asking]]), top)

    def by_row(self, measured: Measured) -> list[list[Score]]:
        """As `batch.Runner.scores`."""
        rows: list[list[Score]] = [[] for _ in self._batch.rows]
        tops = [self._batch.rows[owner].top or 0 for owner in self._owners]
        for owner, score in zip(self._owners, measured.scores(tops), strict=True):
            rows[owner].append(score)
        return rows


def measure(logits: torch.Tensor, at: torch.Tensor, tokens: torch.Tensor, top: int) -> Measured:
    """Of `tokens` int64 [N], the rows `at` int64 [N] of `logits` [rows, vocabulary]; with the `top` likeliest ones."""
    top = min(top, logits.shape[1])
    pieces = [
        _measure(logits.index_select(0, rows).float(), ids, top)
        for rows, ids in zip(at.split(PIECE), tokens.split(PIECE), strict=True)
    ]
    return Measured(*(Download(torch.cat(column)) for column in zip(*pieces, strict=True)))


def _measure(
    logits: torch.Tensor, tokens: torch.Tensor, top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    total = logits.logsumexp(-1, keepdim=True)
    values, ids = logits.topk(top)
    return (logits.gather(1, tokens[:, None]) - total)[:, 0], values - total, ids
