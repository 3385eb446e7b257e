"""Which part of a model one of several ranks has."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of `ranks`; alone by default."""

    rank: int = 0
    ranks: int = 1

    def share(self, total: int) -> range:
        """Its part of `total` things in a row. Where they do not divide, the last ranks have fewer, or none."""
        size = self.size(total)
        return range(min(self.rank * size, total), min((self.rank + 1) * size, total))

    def size(self, total: int) -> int:
        """The most things that any rank has."""
        return -(-total // self.ranks)


ALONE = Shard()
