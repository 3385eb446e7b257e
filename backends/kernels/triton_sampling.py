"""Truncation and the draw over whole vocabularies, in Triton, without a sort and without asking the device.

What top-k or top-p keep are all tokens up to some distance from the likeliest. That distance is found by bisection over
the bits of float32, whose order is that of the numbers: some twenty passes over a row that stays in the cache.
"""

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from backends.kernels.noise import BITS, GOLDEN, LAST_SHIFT, MIX
from backends.kernels.transfer import upload
from backends.kernels.triton_types import OPTIONS
from backends.kernels.truncation import Law

COLUMNS = 2048  # of one row, at a time
PIECES = 32  # programs that share the draw of one row, at most


def truncate(logits: torch.Tensor, laws: Sequence[Law]) -> torch.Tensor:
    """As `truncation.truncate`, but for tokens as likely as the edge but for a rounding."""
    least = float(np.finfo(np.float32).tiny)
    settings = np.array(
        [
            (max(law.temperature, least), law.top_p, np.log(law.min_p) if law.min_p > 0 else -np.inf)
            for law in laws
        ],
        np.float32,
    )
    ranks = upload([law.top_k for law in laws], logits.device, np.int32)
    logits = logits.contiguous()
    scores = torch.empty_like(logits)
    cut[(len(logits),)](
        logits, scores, upload(settings, logits.device), ranks, logits.shape[1],
        COLUMNS=COLUMNS, num_warps=8, **OPTIONS,
    )  # fmt: skip
    return scores


def draw(scores: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """As `reference.Kernels.draw`."""
    rows, vocabulary = scores.shape
    pieces = min(PIECES, triton.cdiv(vocabulary, COLUMNS))
    best = torch.empty(rows, pieces, dtype=torch.float64, device=scores.device)
    tokens = torch.empty(rows, pieces, dtype=torch.int64, device=scores.device)
    draw_pieces[(rows, pieces)](
        scores, keys, best, tokens, vocabulary, triton.cdiv(triton.cdiv(vocabulary, pieces), COLUMNS),
        COLUMNS=COLUMNS, **OPTIONS,
    )  # fmt: skip
    return tokens.gather(1, best.argmax(1, keepdim=True))[:, 0]


@triton.jit  # type: ignore[untyped-decorator]
def cut(
    logits: tl.tensor,
    scores: tl.tensor,
    settings: tl.tensor,
    ranks: tl.tensor,
    vocabulary: tl.tensor,
    COLUMNS: tl.constexpr,
) -> None:
    """`settings` float32 [rows, 3]: temperature, top-p, and the logarithm of min-p. Distances lie in `scores` until
    they are scores: they are never negative, so that their bits as integers are in their order."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    logits += row * vocabulary
    distances = scores + row * vocabulary
    temperature, top_p = tl.load(settings + row * 3), tl.load(settings + row * 3 + 1)
    log_min_p, top_k = tl.load(settings + row * 3 + 2), tl.load(ranks + row)

    largest = tl.full([COLUMNS], float("-inf"), tl.float32)
    for begin in range(0, vocabulary, COLUMNS):
        is_in = begin + columns < vocabulary
        largest = tl.maximum(largest, tl.load(logits + begin + columns, mask=is_in, other=float("-inf")))
    top = tl.max(largest, 0)
    divisor = tl.full([COLUMNS], 0.0, tl.float32) + temperature
    for begin in range(0, vocabulary, COLUMNS):
        is_in = begin + columns < vocabulary
        below = top - tl.load(logits + begin + columns, mask=is_in, other=0.0)
        tl.store(distances + begin + columns, tl.div_rn(below, divisor), mask=is_in)
    tl.debug_barrier()

    edge = tl.full((), 0x7F800000, tl.int32)  # infinitely far
    if (top_k > 0) & (top_k < vocabulary):
        edge = search(distances, vocabulary, edge, top_k.to(tl.float32), 0, COLUMNS)
    if top_p < 1:
        _, mass = within(distances, vocabulary, edge, COLUMNS)
        edge = search(distances, vocabulary, edge, mass * top_p, 1, COLUMNS)
    for begin in range(0, vocabulary, COLUMNS):
        is_in = begin + columns < vocabulary
        distance = tl.load(distances + begin + columns, mask=is_in, other=0.0)
        kept = (distance.to(tl.int32, bitcast=True) <= edge) & (-distance >= log_min_p)
        tl.store(distances + begin + columns, tl.where(kept, -distance, float("-inf")), mask=is_in)


@triton.jit  # type: ignore[untyped-decorator]
def search(
    distances: tl.tensor,
    vocabulary: tl.tensor,
    far: tl.tensor,
    wanted: tl.tensor,
    BY_MASS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """The bits of a distance, at most `far`, within which the fewest tokens make `wanted`: in number, or in mass."""
    near = tl.full((), -1, tl.int32)  # within it there is too little
    many, _ = within(distances, vocabulary, far, COLUMNS)
    few = tl.full((), 0.0, tl.float32)
    while (far - near > 1) & (many - few > 1):
        middle = near + (far - near) // 2
        count, mass = within(distances, vocabulary, middle, COLUMNS)
        enough = (mass if BY_MASS else count) >= wanted
        far, many = tl.where(enough, middle, far), tl.where(enough, count, many)
        near, few = tl.where(enough, near, middle), tl.where(enough, few, count)
    return far


@triton.jit  # type: ignore[untyped-decorator]
def within(
    distances: tl.tensor, vocabulary: tl.tensor, edge: tl.tensor, COLUMNS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """How many tokens are no farther than `edge`, exactly up to 2**24 of them, and the sum of their exponentials."""
    columns = tl.arange(0, COLUMNS)
    count, mass = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    for begin in range(0, vocabulary, COLUMNS):
        is_in = begin + columns < vocabulary
        distance = tl.load(distances + begin + columns, mask=is_in, other=0.0)
        kept = is_in & (distance.to(tl.int32, bitcast=True) <= edge)
        count += tl.where(kept, 1.0, 0.0)
        mass += tl.where(kept, tl.exp(-distance), 0.0)
    return tl.sum(count, 0), tl.sum(mass, 0)


@triton.jit  # type: ignore[untyped-decorator]
def draw_pieces(
    scores: tl.tensor,
    keys: tl.tensor,
    best: tl.tensor,
    tokens: tl.tensor,
    vocabulary: tl.tensor,
    steps: tl.tensor,
    COLUMNS: tl.constexpr,
) -> None:
    """The best of score + noise in one piece of a row, `steps` times COLUMNS wide, see `noise`."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    key = tl.load(keys + row).to(tl.uint64, bitcast=True)
    scores += row * vocabulary
    first = piece * steps * COLUMNS
    winner, value = tl.full((), 0, tl.int64), tl.full((), float("-inf"), tl.float64)
    for step in range(0, steps):
        columns = first + step * COLUMNS + tl.arange(0, COLUMNS)
        score = tl.load(scores + columns, mask=columns < vocabulary, other=float("-inf"))
        bits = noise_bits(key, columns)
        # The noise -log(-log u) is at most -log(1 - u). Few tiles have a token that could still win: two logarithms in
        # float64 for each token would take longer than all else.
        rest = (0xFFFFFFFFFFFFF - bits).to(tl.float32) + 0.5
        bound = 36.05 - tl.log(rest)  # 52 · ln 2 = 36.0437, and some for the roundings of float32
        if tl.max(score + bound, 0).to(tl.float64) >= value:
            uniform = (bits.to(tl.float64) + 0.5) * 2.220446049250313e-16  # 2**-52
            noisy = score.to(tl.float64) - tl.log(-tl.log(uniform))
            here = tl.max(noisy, 0)
            if here > value:
                value = here
                winner = first.to(tl.int64) + step * COLUMNS + tl.argmax(noisy, 0)
    at = row * tl.num_programs(1) + piece
    tl.store(best + at, value)
    tl.store(tokens + at, winner)


GOLDEN_STEP = tl.constexpr(GOLDEN)
FACTOR_1, FACTOR_2 = tl.constexpr(MIX[0][1]), tl.constexpr(MIX[1][1])
SHIFT_1, SHIFT_2, SHIFT_3 = tl.constexpr(MIX[0][0]), tl.constexpr(MIX[1][0]), tl.constexpr(LAST_SHIFT)
DROPPED = tl.constexpr(64 - BITS)


@triton.jit  # type: ignore[untyped-decorator]
def noise_bits(key: tl.tensor, columns: tl.tensor) -> tl.tensor:
    """The bits of `noise.uniform`, as int64."""
    x = key + (columns + 1).to(tl.uint64) * GOLDEN_STEP
    x = (x ^ (x >> SHIFT_1)) * FACTOR_1
    x = (x ^ (x >> SHIFT_2)) * FACTOR_2
    return ((x ^ (x >> SHIFT_3)) >> DROPPED).to(tl.int64)
