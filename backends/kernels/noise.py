"""Sampling noise without state: each number is a pure function of (seed, position, token).

SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014) as a counter-based
generator: seed and position make a row's key, and the token's number is the generator's output at that index. The
same seed therefore gives the same text in any batch, chunked or not, and after preemption.
"""

import torch

GOLDEN = 0x9E3779B97F4A7C15
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
BITS = 52  # of a uniform number: half-way between two multiples of 2**-52, all of it exact in float64
_MASK = 2**64 - 1


def signed(value: int) -> int:
    """The int64 with the bits of an unsigned 64-bit number."""
    return value - 2**64 if value >= 2**63 else value


def row_key(seed: int, position: int) -> int:
    """The key of one row's noise, as an int64. Both arguments unsigned, 64 bits."""
    return signed(_mix((_mix((seed + GOLDEN) & _MASK) + position * GOLDEN) & _MASK))


def _mix(x: int) -> int:
    for shift, factor in MIX:
        x = (x ^ (x >> shift)) * factor & _MASK
    return x ^ (x >> LAST_SHIFT)


def uniform(keys: torch.Tensor, count: int) -> torch.Tensor:
    """float64 [len(keys), count] in the open interval (0, 1), for the tokens 0 to count - 1 of each key (int64)."""
    tokens = torch.arange(1, count + 1, device=keys.device)
    x = keys[:, None] + tokens * signed(GOLDEN)
    for shift, factor in MIX:
        x = (x ^ _shift_right(x, shift)) * signed(factor)
    x = x ^ _shift_right(x, LAST_SHIFT)
    return (_shift_right(x, 64 - BITS).double() + 0.5) * 2.0**-BITS


def _shift_right(x: torch.Tensor, by: int) -> torch.Tensor:
    """Of unsigned numbers: zeros come in from the left."""
    return (x >> by) & (2 ** (64 - by) - 1)


def gumbel(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Noise of the standard Gumbel law: argmax(score + noise) is a draw from softmax(score)."""
    return -torch.log(-torch.log(uniform(keys, count)))
