"""The names under which the world outside knows the cached blocks, and what has changed since it was last told."""

from collections.abc import Iterable, Sequence

from prefixcache.affinity import block_keys


class CacheKeys:
    """Chained key of every block in the tree, see `prefixcache.affinity.block_keys`."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._keys: dict[int, bytes] = {}
        self._stored: dict[bytes, None] = {}  # in order, like the next one
        self._evicted: dict[bytes, None] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def store(self, salt: bytes, ids: Sequence[int], blocks: list[int], parent: int | None) -> None:
        """`blocks` hold `ids` and follow the block `parent`, or are the first of their prompt."""
        before = None if parent is None else self._keys[parent]
        for block, key in zip(blocks, block_keys(salt, ids, self._block_size, before), strict=True):
            self._keys[block] = key
            _note(key, self._stored, self._evicted)

    def evict(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            _note(self._keys.pop(block), self._evicted, self._stored)

    def changes(self) -> tuple[list[bytes], list[bytes]]:
        """Keys that came and keys that went since the last call; what did both is in neither."""
        changes = list(self._stored), list(self._evicted)
        self._stored, self._evicted = {}, {}
        return changes

    def all(self) -> list[bytes]:
        """Keys of all blocks, each after its parent only by chance."""
        return list(self._keys.values())


def _note(key: bytes, changes: dict[bytes, None], opposite: dict[bytes, None]) -> None:
    """Record a change, unless it undoes one that nobody has been told of."""
    if key in opposite:
        del opposite[key]
    else:
        changes[key] = None
