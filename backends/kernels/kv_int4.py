"""Keys and values in four bits: a vector of a head as one record of bytes.

Neighbouring numbers, `GROUP` of them, share a scale and a least number: x ≈ code · scale + least, with codes 0 to 15.
A vector [D] is D / 2 bytes of codes and then, for each group, its scale and its least number in bfloat16, the low byte
first. A byte of a group holds one code of its first half in the low bits and one of its second half in the high ones.
A code times a scale is exact in float32, so that every way to read a record comes to the same number.
"""

import torch

GROUP = 32  # the last one of a vector may be smaller
HIGHEST = 15
HEADER = 4  # bytes of a group's scale and least number
LEAST = 1e-20  # of scales: a vector of equal numbers has one too, so that nothing is divided by 0


def record_bytes(head_dim: int) -> int:
    """Of one vector of `head_dim` numbers. Raises ValueError for an odd one, of which no half is whole."""
    if head_dim % 2:
        raise ValueError(f"kv_cache: int4 holds heads of even sizes, not {head_dim}")
    return head_dim // 2 + HEADER * -(-head_dim // GROUP)


def encode(x: torch.Tensor) -> torch.Tensor:
    """Records uint8 [..., `record_bytes`] of `x` [..., D]; rounded to nearest, ties to even.

    What is no number makes all of its group NaN.
    """
    codes, headers = [], []
    for group in x.float().split(GROUP, -1):
        least = group.amin(-1, keepdim=True).bfloat16().float()
        scale = ((group.amax(-1, keepdim=True) - least) / HIGHEST).clamp(min=LEAST).bfloat16().float()
        steps = ((group - least) / scale).round().clamp(0, HIGHEST).nan_to_num(0).to(torch.uint8)
        first, second = steps.chunk(2, -1)
        codes.append(first | second << 4)
        headers.append(torch.cat([scale, least], -1).bfloat16().view(torch.uint8))
    return torch.cat(codes + headers, -1)


def decode(records: torch.Tensor, head_dim: int) -> torch.Tensor:
    """float32 [..., `head_dim`]."""
    codes, headers = records.split([head_dim // 2, records.shape[-1] - head_dim // 2], -1)
    scaled = headers.contiguous().view(torch.bfloat16).float().unflatten(-1, (-1, 2))
    groups = []
    for number, group in enumerate(codes.split(GROUP // 2, -1)):
        scale, least = scaled[..., number, :].split(1, -1)
        groups.append(torch.cat([group & HIGHEST, group >> 4], -1).float() * scale + least)
    return torch.cat(groups, -1)
