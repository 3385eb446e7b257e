"""The free blocks of the device's KV memory. What the blocks hold, only the runner knows."""

from collections.abc import Iterable

import numpy as np


class BlockPool:
    """Block ids 0 … total - 1, each either free or with somebody. The last one freed is the first one given out.

    `births` [total] counts how often each was given out: whatever somebody knows of a block's content is of one birth.
    """

    def __init__(self, total: int) -> None:
        """Raises ValueError when `total` is not positive."""
        if total < 1:
            raise ValueError(f"blocks: {total} is not positive")
        self.total = total
        self.births = np.zeros(total, np.int64)
        self._free = list(range(total - 1, -1, -1))
        self._is_free = bytearray(b"\x01" * total)

    @property
    def free(self) -> int:
        """How many blocks are free."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Raises ValueError when fewer than `count` are free; then none is given out."""
        if not 0 <= count <= len(self._free):
            raise ValueError(f"{count} blocks wanted, {len(self._free)} are free")
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._is_free[block] = 0
            self.births[block] += 1
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Raises ValueError for a block that is free already, or none of the pool's."""
        for block in blocks:
            if not 0 <= block < self.total or self._is_free[block]:
                raise ValueError(f"block {block} is not given out")
            self._is_free[block] = 1
            self._free.append(block)

    def check(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        assert sorted(self._free) == [block for block in range(self.total) if self._is_free[block]]
