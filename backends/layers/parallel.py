"""Layers that several ranks compute together, and what these have to tell each other for it.

The cuts are those of Megatron-LM (arXiv:1909.08053, section 3): what leads into attention and MLP is cut along its
outputs and needs no word between the ranks; what leads out of them is cut along its inputs, and the results are added
up. Embedding and head are cut along the vocabulary.
"""

from typing import Protocol

import torch

from backends.layers.embedding import Embedding
from backends.layers.linear import Linear
from backends.layers.shard import Shard


class Ranks(Protocol):
    """All ranks, as one of them sees them. Each calls the same methods in the same order, with equal shapes."""

    @property
    def shard(self) -> Shard: ...

    def add(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of what the ranks have, in place of `x`."""
        ...

    def join(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, columns] of each rank, side by side."""
        ...

    def join_on_first(self, x: torch.Tensor) -> torch.Tensor:
        """The same on the first rank; the others get no columns."""
        ...


class AddedLinear:
    """A linear whose inputs the ranks have in parts: each multiplies its own, and the products are added up.

    One exchange of [tokens, out]. Only one rank's `own` may have the bias.
    """

    def __init__(self, own: Linear, ranks: Ranks) -> None:
        self._own, self._ranks = own, ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._ranks.add(self._own(x))


class JoinedLinear:
    """A linear whose inputs the ranks have in parts, where a product over a part is none of the whole's: small integers
    have scales over a whole row of inputs.

    The ranks join the inputs, and each has some of the `outputs`, with the rest of `Shard.share`. What comes out is bit
    by bit what one rank computes.
    """

    def __init__(self, own: Linear, ranks: Ranks, outputs: int) -> None:
        self._own, self._ranks, self._outputs = own, ranks, outputs

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = _padded(self._own(self._ranks.join(x)), self._ranks.shard.size(self._outputs))
        return self._ranks.join(out)[:, : self._outputs].contiguous()


class JoinedHead:
    """The logits of the first `ids` of a vocabulary of `rows`, of which each rank has a part; on the first rank alone.

    `own`: None for a rank all of whose rows are padding.
    """

    def __init__(self, own: Linear | None, ranks: Ranks, rows: int, ids: int) -> None:
        self._own, self._ranks, self._ids = own, ranks, ids
        self._width = ranks.shard.size(rows)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        own = x.new_empty(len(x), 0) if self._own is None else self._own(x)
        return self._ranks.join_on_first(_padded(own, self._width))[:, : self._ids]


class SharedEmbedding:
    """An embedding of which each rank has, as its `own`, the rows that are its share of `rows`."""

    def __init__(self, own: Embedding, ranks: Ranks, rows: int) -> None:
        self._own, self._ranks = own, ranks
        self._first = ranks.shard.share(rows).start
        self.dtype, self.device = own.dtype, own.device

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """As `Embedding`. Zeros are added to what one rank has, so that it stays what it is."""
        places = ids - self._first
        elsewhere = (places < 0) | (places >= len(self._own))
        own = self._own(places.masked_fill(elsewhere, 0))
        return self._ranks.add(own.masked_fill_(elsewhere[:, None], 0))


def _padded(x: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, width - x.shape[1])) if x.shape[1] < width else x
