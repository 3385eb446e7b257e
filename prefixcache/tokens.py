"""Token ids as bytes: four little-endian bytes each, so that runs of ids compare, hash and slice at memory speed."""

import sys
from array import array
from collections.abc import Sequence

WIDTH = 4  # bytes per token id


def pack(ids: Sequence[int]) -> bytes:
    """The ids as bytes, `WIDTH` for each. Raises OverflowError for an id outside 0 … 2**32 - 1."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
