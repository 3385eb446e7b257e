"""Small unsigned integers in 32-bit words, the first in the lowest bits: what all formats of packed integers share.

A word's bytes lie lowest first in memory, as on every machine that torch runs on.
"""

import torch

BITS = (2, 4, 8)  # of one integer; others would reach over the ends of words, where formats differ


def per_word(bits: int) -> int:
    """How many integers a word holds. Raises ValueError for bits that are none of BITS."""
    if bits not in BITS:
        raise ValueError(f"integers of {bits} bits are not supported, only of {', '.join(map(str, BITS))}")
    return 32 // bits


def pack_words(values: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 [..., n] to int32 [..., words], the last word filled up with zeros."""
    missing = -values.shape[-1] % per_word(bits)
    filled = torch.nn.functional.pad(values, (0, missing))
    in_bytes = filled.unflatten(-1, (-1, 8 // bits))
    packed = in_bytes[..., 0].clone(memory_format=torch.contiguous_format)
    for place in range(1, 8 // bits):
        packed |= in_bytes[..., place] << (place * bits)
    return packed.view(torch.int32)


def unpack_words(words: torch.Tensor, bits: int, count: int | None = None) -> torch.Tensor:
    """The reverse: int32 [..., words] to uint8 [..., count], or as many as the words hold."""
    held = words.shape[-1] * per_word(bits)
    if count is not None and not 0 <= held - count < per_word(bits):
        raise ValueError(f"{words.shape[-1]} words hold {held} integers of {bits} bits, not {count}")
    packed = words.contiguous().flatten().view(torch.uint8).view(*words.shape[:-1], -1)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    values = (packed.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    return values.flatten(-2)[..., :count]
