"""What an eviction costs, in steps instead of seconds."""

import random
import sys
from types import FrameType

from prefixcache.tree import RadixTree


class Counted(int):
    """A time that counts how often it is compared."""

    compared = 0

    def __add__(self, other: int) -> "Counted":
        return Counted(int(self) + other)

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def work_of_evictions(leaves: int, count: int) -> float:
    """Comparisons of times and calls of functions for each of `count` blocks, one eviction each."""
    tree = RadixTree(1)
    tree._clock = Counted(0)
    for leaf in range(leaves):
        tree.insert(b"", [leaf], [leaf])
    for leaf in random.Random(0).sample(range(leaves), leaves):
        tree.match(b"", [leaf])
    tree.evict(1)  # looks at every use since the last eviction, once
    Counted.compared, calls = 0, 0

    def count_call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count_call)
    try:
        for _ in range(count):
            tree.evict(1)
    finally:
        sys.setprofile(None)
    return (Counted.compared + calls) / count


def test_the_work_of_an_eviction_grows_with_the_logarithm_of_the_leaves() -> None:
    few, many = work_of_evictions(1 << 8, 100), work_of_evictions(1 << 14, 100)
    assert many < few + 6 * 8, "six doublings, each a level more of the heap"
