"""How the work of a product is cut: what depends on the weights alone, and what may depend on the rows."""

from dataclasses import dataclass

PROGRAMS = 512  # that keep any of the GPUs busy; a number of the machine's own would make answers differ between them
DEEPEST = 128  # columns of one step
TILE_ROWS = (16, 32, 64)  # from the fewest that a matrix instruction takes to where more are no faster


@dataclass(frozen=True, slots=True)
class Tiling:
    """`splits` pieces of `span` columns each are summed up by themselves, `depth` columns at a time, and then one
    after another. With `parallel`, programs of their own do that: the order of the sums stays what it is."""

    rows: int
    channels: int
    depth: int
    splits: int
    span: int
    parallel: bool
    warps: int
    stages: int


def tiling(rows: int, channels: int, columns: int, group: int, input_bytes: int) -> Tiling:
    """For x [rows, columns] of numbers of `input_bytes`, and weights [channels, columns] in groups of `group`.

    `depth`, `splits` and `span` do not look at the rows, so a row's sums have the same order in every batch. What is
    left is the hardware's: GPUs from sm90 on take another instruction for tiles of 64 rows and more, which may
    round differently inside.
    """
    depth = _depth(columns, group)
    steps = -(-columns // depth)
    splits = max(1, min(PROGRAMS // -(-channels // 64), steps // 4))
    span = -(-steps // splits) * depth
    splits = -(-columns // span)
    tile_rows = next((size for size in TILE_ROWS if size >= rows), TILE_ROWS[-1])
    wide = tile_rows == TILE_ROWS[-1] and input_bytes < 4
    tile_channels = 128 if wide else 64
    programs = -(-rows // tile_rows) * -(-channels // tile_channels)
    return Tiling(
        rows=tile_rows,
        channels=tile_channels,
        depth=depth,
        splits=splits,
        span=span,
        parallel=splits > 1 and programs < PROGRAMS // 2,
        warps=8 if wide else 4,
        stages=2 if input_bytes == 4 else 3 if wide else 4,
    )


def _depth(columns: int, group: int) -> int:
    """The largest power of two up to DEEPEST that divides a group; whole channels end with a mask."""
    return DEEPEST if group == columns else min(DEEPEST, group & -group)
