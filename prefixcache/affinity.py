"""Which replica holds which prefixes, as far as the engines have told.

Blocks are named by keys that chain: a key depends on the salt, on the block's tokens and on all tokens before it.
So a key that is present says that a whole prefix is, and nobody can compute a tenant's keys without its salt.
"""

import hashlib
from collections.abc import Iterable, Sequence

from prefixcache.tokens import WIDTH, pack

DIGEST = 16  # bytes kept of each SHA-256: 2**64 blocks until a collision is likely


def block_keys(salt: bytes, ids: Sequence[int], block_size: int, parent: bytes | None = None) -> list[bytes]:
    """One key of 16 bytes for each full block of `ids`; a partial block at the end has none.

    key(i) = SHA-256(key(i-1) ‖ tokens of block i as little-endian 32 bits), truncated. Before the first block stands
    SHA-256("salt" ‖ length of the salt as 64 bits ‖ salt). To go on from block i, pass key(i) as `parent` and the
    ids that follow it. Raises ValueError when `block_size` is not positive, OverflowError for ids beyond 32 bits.
    """
    if block_size < 1:
        raise ValueError(f"block_size: {block_size} is not positive")
    key = _salt_key(salt) if parent is None else parent
    tokens, width = pack(ids), block_size * WIDTH
    keys = []
    for end in range(width, len(tokens) + 1, width):
        key = hashlib.sha256(key + tokens[end - width : end]).digest()[:DIGEST]
        keys.append(key)
    return keys


def _salt_key(salt: bytes) -> bytes:
    return hashlib.sha256(b"salt" + len(salt).to_bytes(8, "little") + salt).digest()[:DIGEST]


class Affinity:
    """What is known of every replica's cache."""

    def __init__(self) -> None:
        self._replicas: dict[str, set[bytes]] = {}

    def snapshot(self, replica: str, keys: Iterable[bytes]) -> None:
        """All that the replica holds now."""
        self._replicas[replica] = set(keys)

    def stored(self, replica: str, keys: Iterable[bytes]) -> None:
        """Blocks that the replica holds from now on."""
        self._replicas.setdefault(replica, set()).update(keys)

    def evicted(self, replica: str, keys: Iterable[bytes]) -> None:
        """Blocks that the replica no longer holds."""
        self._replicas.setdefault(replica, set()).difference_update(keys)

    def lookup(self, keys: Sequence[bytes]) -> dict[str, int]:
        """For each replica, how many of the leading `keys` it holds without a hole."""
        return {name: _leading(keys, held) for name, held in self._replicas.items()}


def _leading(keys: Sequence[bytes], held: set[bytes]) -> int:
    for count, key in enumerate(keys):
        if key not in held:
            return count
    return len(keys)
