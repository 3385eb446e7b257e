"""AWQ's layout for matrix products ("gemm"), 4 bits (github.com/casper-hansen/AutoAWQ, `awq/modules/linear/gemm.py`).

    qweight  int32 [in, out / 8]
    qzeros   int32 [in / group, out / 8]
    scales   float16 [in / group, out]

A word holds eight neighbouring output channels, from the lowest bits on in the order 0, 2, 4, 6, 1, 3, 5, 7. A weight
is (integer − zero) · scale. For 8 bits writers disagree about the order, so there is no such layout here.
"""

from collections.abc import Mapping

import torch

from backends.quantization.grouped import Grouped
from backends.quantization.packing.words import pack_words, unpack_words

BITS = 4
NAMES = ("qweight", "qzeros", "scales")
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_BACK = (0, 4, 1, 5, 2, 6, 3, 7)


def pack(weight: Grouped) -> dict[str, torch.Tensor]:
    """The tensors of `NAMES`. Raises ValueError for what the layout cannot hold: other bits, output channels that are
    no multiple of eight, columns whose groups are no neighbours."""
    if weight.bits != BITS:
        raise ValueError(f"AWQ's layout holds {BITS} bits, not {weight.bits}")
    if len(weight.integers) % len(_ORDER):
        raise ValueError(f"AWQ's layout holds multiples of 8 rows, not {len(weight.integers)}")
    if weight.column_groups is not None:
        raise ValueError("AWQ's layout has no place for groups of columns that are no neighbours")
    return {
        "qweight": pack_words(_reordered(weight.integers.T, _ORDER), BITS),
        "qzeros": pack_words(_reordered(weight.zeros.T, _ORDER), BITS),
        "scales": weight.scales.T.half().contiguous(),
    }


def unpack(tensors: Mapping[str, torch.Tensor]) -> Grouped:
    """The reverse of `pack`. Raises ValueError for tensors that do not fit one another."""
    qweight, qzeros, scales = (tensors[name] for name in NAMES)
    integers, zeros = (_reordered(unpack_words(words, BITS), _BACK).T for words in (qweight, qzeros))
    return Grouped(BITS, integers, scales.T, zeros)


def _reordered(values: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """[n, out], each eight neighbours in another order."""
    return values.unflatten(1, (-1, len(order)))[..., list(order)].flatten(1)
