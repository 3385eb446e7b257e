"""The blocks of one device, and whose they are: free, in the prefix tree, or a sequence's own."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from backends.engine.blocks import BlockPool
from backends.engine.keys import CacheKeys
from backends.engine.sequence import Sequence
from prefixcache.tree import Match, RadixTree


class BlockCache:
    """Hands blocks to sequences, and lets sequences share those that hold the same prefix under the same salt."""

    def __init__(
        self, blocks: int, block_size: int, tenant_share: float = 1.0, session_share: float = 1.0
    ) -> None:
        """The shares: of the blocks, that one tenant and one session may keep cached while others need some.

        Raises ValueError when one of the numbers is not positive.
        """
        self.block_size = block_size
        self._pool = BlockPool(blocks)
        if not (tenant_share > 0 and session_share > 0):
            raise ValueError("tenant_share and session_share must be positive")
        self._tree = RadixTree(
            block_size, [max(1, int(share * blocks)) for share in (tenant_share, session_share)]
        )
        self._keys = CacheKeys(block_size)

    @property
    def total(self) -> int:
        return self._pool.total

    @property
    def births(self) -> NDArray[np.int64]:
        """See `BlockPool`."""
        return self._pool.births

    @property
    def free(self) -> int:
        """Blocks that hold nothing of use."""
        return self._pool.free

    @property
    def evictable(self) -> int:
        """Blocks in the tree that no sequence uses."""
        return self._tree.evictable

    @property
    def available(self) -> int:
        """Blocks that `extend` can find."""
        return self._pool.free + self._tree.evictable

    def __contains__(self, block: int) -> bool:
        """Whether the block is in the tree: then nobody may write it."""
        return block in self._keys

    def span(self, tokens: int) -> int:
        """How many blocks hold that many tokens."""
        return -(-tokens // self.block_size)

    def missing(self, sequence: Sequence, tokens: int) -> int:
        """How many blocks the sequence lacks for its first `tokens` tokens."""
        return max(0, self.span(tokens) - len(sequence.blocks))

    def match(self, sequence: Sequence) -> Match:
        """What the tree has of its tokens that need not be run."""
        return self._tree.match(sequence.salt, sequence.reusable)

    def cost(self, sequence: Sequence, match: Match) -> int:
        """By how much `available` falls until all tokens of a waiting sequence are computed, starting from `match`."""
        return self.span(len(sequence.ids)) - len(match.blocks) + self._tree.unlocked(match.node)

    def adopt(self, sequence: Sequence, match: Match) -> None:
        """Let a sequence without blocks start from the matched ones."""
        self._tree.lock(match.node)
        sequence.node = match.node
        sequence.blocks = list(match.blocks)
        sequence.shared = len(match.blocks)
        sequence.computed = len(match.blocks) * self.block_size

    def extend(self, sequence: Sequence, tokens: int) -> None:
        """Give a sequence the blocks it lacks for its first `tokens` tokens, evicting what is cached where need be.

        Raises ValueError when more are missing than available.
        """
        count = self.missing(sequence, tokens)
        if count > self._pool.free:
            evicted = self._tree.evict(count - self._pool.free)
            self._keys.evict(evicted)
            self._pool.release(evicted)
        sequence.blocks += self._pool.allocate(count)

    def store(self, sequence: Sequence) -> None:
        """Put a sequence's full, computed blocks into the tree; where that has equals, the sequence uses those."""
        full = sequence.computed // self.block_size
        if full <= sequence.shared:
            return
        insertion = self._tree.insert(
            sequence.salt, sequence.ids, sequence.blocks[:full], (sequence.tenant, sequence.whole_session)
        )
        self._tree.lock(insertion.node)
        if sequence.node is not None:
            self._tree.unlock(sequence.node)
        self._pool.release(insertion.duplicates)
        sequence.node, sequence.shared = insertion.node, full
        sequence.blocks[:full] = insertion.blocks
        known = full - len(insertion.taken)
        ids = sequence.ids[known * self.block_size : full * self.block_size]
        self._keys.store(sequence.salt, ids, insertion.taken, insertion.blocks[known - 1] if known else None)

    def release(self, sequence: Sequence, *, keep: bool) -> None:
        """Take all blocks from a sequence. `keep`: cache what is computed, before."""
        if keep:
            self.store(sequence)
        self._pool.release(reversed(sequence.blocks[sequence.shared :]))
        if sequence.node is not None:
            self._tree.unlock(sequence.node)
        sequence.node, sequence.blocks, sequence.shared, sequence.computed = None, [], 0, 0

    def changes(self) -> tuple[list[bytes], list[bytes]]:
        """Keys of blocks that entered and that left the tree since the last call."""
        return self._keys.changes()

    def keys(self) -> list[bytes]:
        """Keys of all blocks in the tree."""
        return self._keys.all()

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Every block is somewhere, once; every table is sound. Raises AssertionError.

        `sequences`: all that have blocks.
        """
        self._pool.check()
        self._tree.check()
        assert len(self._keys) == self._tree.cached
        assert len(set(self._keys.all())) == self._tree.cached, "equal prefixes are cached twice"
        own = [block for sequence in sequences for block in sequence.blocks[sequence.shared :]]
        assert len(own) == len(set(own)), "two sequences would write the same block"
        assert not any(block in self._keys for block in own), "a sequence would write a cached block"
        assert self._pool.free + self._tree.cached + len(own) == self._pool.total
        for sequence in sequences:
            self._check_table(sequence)

    def _check_table(self, sequence: Sequence) -> None:
        assert sequence.shared * self.block_size <= sequence.computed < len(sequence.ids)
        assert sequence.computed <= len(sequence.blocks) * self.block_size
        assert len(set(sequence.blocks)) == len(sequence.blocks)
        if sequence.node is not None:
            assert self._tree.prefix(sequence.node) == sequence.blocks[: sequence.shared]
            assert self._tree.unlocked(sequence.node) == 0
        else:
            assert not sequence.shared
