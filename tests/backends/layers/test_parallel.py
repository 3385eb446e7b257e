"""Layers over ranks that are threads: the first rank's results are those of one layer with all weights."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier

import pytest
import torch

from backends.layers.embedding import Embedding
from backends.layers.linear import linear
from backends.layers.parallel import AddedLinear, JoinedHead, JoinedLinear, SharedEmbedding
from backends.layers.shard import Shard


@dataclass
class Meeting:
    """Where the ranks of one test exchange what they have."""

    ranks: int
    barrier: Barrier = field(init=False)
    parts: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = Barrier(self.ranks)
        self.parts = [torch.empty(0)] * self.ranks

    def exchange(self, rank: int, x: torch.Tensor) -> Sequence[torch.Tensor]:
        self.parts[rank] = x.clone()
        self.barrier.wait(10)
        parts = list(self.parts)
        self.barrier.wait(10)
        return parts


@dataclass
class Threads:
    """As `parallel.Ranks`."""

    meeting: Meeting
    shard: Shard

    def add(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(list(self.meeting.exchange(self.shard.rank, x))).sum(0)

    def join(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(list(self.meeting.exchange(self.shard.rank, x)), 1)

    def join_on_first(self, x: torch.Tensor) -> torch.Tensor:
        joined = self.join(x)
        return joined if self.shard.rank == 0 else joined[:, :0]


def together(ranks: int, run: Callable[[Threads], torch.Tensor]) -> list[torch.Tensor]:
    """What `run` returns on each rank."""
    meeting = Meeting(ranks)
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(run, [Threads(meeting, Shard(rank, ranks)) for rank in range(ranks)]))


@pytest.mark.parametrize("ranks", [2, 3])
def test_products_are_added_up_and_the_bias_once(ranks: int) -> None:
    weight, bias, x = torch.randn(10, 12), torch.randn(10), torch.randn(5, 12)

    def run(own: Threads) -> torch.Tensor:
        columns = own.shard.share(12)
        part = slice(columns.start, columns.stop)
        layer = linear(weight[:, part].contiguous(), bias if own.shard.rank == 0 else None)
        return AddedLinear(layer, own)(x[:, part].contiguous())

    for result in together(ranks, run):
        torch.testing.assert_close(result, x @ weight.T + bias)


@pytest.mark.parametrize("ranks", [2, 3])
def test_joined_integers_are_bit_by_bit_those_of_one_rank(ranks: int) -> None:
    """10 outputs: three ranks have 4, 4 and 2 of them."""
    weight, bias, x = torch.randn(10, 96), torch.randn(10), torch.randn(5, 96)
    x[:, 40] *= 30  # a part without this column would have other scales

    def run(own: Threads) -> torch.Tensor:
        rows, columns = own.shard.share(10), own.shard.share(96)
        layer = linear(weight[rows.start : rows.stop], bias[rows.start : rows.stop], format="int8")
        return JoinedLinear(layer, own, 10)(x[:, columns.start : columns.stop].contiguous())

    alone = linear(weight, bias, format="int8")(x)
    for result in together(ranks, run):
        assert torch.equal(result, alone)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("ids", [199, 190, 60])
def test_logits_are_the_first_ranks_and_those_of_true_ids(ranks: int, ids: int) -> None:
    """With 60 ids of 199 rows the last rank of three has none."""
    weight, x = torch.randn(199, 16), torch.randn(4, 16)

    def run(own: Threads) -> torch.Tensor:
        rows = own.shard.share(199)
        part = weight[rows.start : min(rows.stop, ids)]
        return JoinedHead(linear(part) if len(part) else None, own, 199, ids)(x)

    first, *others = together(ranks, run)
    torch.testing.assert_close(first, x @ weight[:ids].T)
    assert all(other.shape == (4, 0) for other in others)


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_rank_looks_up_every_id(ranks: int) -> None:
    embedding, ids = torch.randn(199, 8), torch.tensor([0, 66, 67, 99, 100, 133, 134, 198])

    def run(own: Threads) -> torch.Tensor:
        rows = own.shard.share(199)
        return SharedEmbedding(Embedding.of(embedding[rows.start : rows.stop]), own, 199)(ids)

    for result in together(ranks, run):
        assert torch.equal(result, embedding[ids])
