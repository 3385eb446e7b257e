"""How many sequences run at a time: more, the more wait. A large batch does more work, a small one answers sooner."""

from collections.abc import Sequence

from backends.wire import Band


class Bands:
    """The band in force, by the length of the queue.

    A longer queue takes effect at once. A band then lasts until nobody waits: were it left while its queue shrinks,
    the last of a burst would wait for the first ones to end.
    """

    def __init__(self, bands: Sequence[Band], max_sequences: int) -> None:
        """Raises ValueError where they do not cover every length once, in order, or leave no row."""
        bounds = [band.below for band in bands if band.below is not None]
        if not bands or bands[-1].below is not None or len(bounds) < len(bands) - 1:
            raise ValueError("bands: the last one, and no other, has no `below`")
        if bounds != sorted(set(bounds)) or (bounds and bounds[0] < 1):
            raise ValueError("bands: each one's `below` must be larger than that of the one before")
        if any(band.rows < 1 or not band.ttft_ms > 0 for band in bands):
            raise ValueError("bands: rows and ttft_ms must be positive")
        self._bands = tuple(bands)
        self._max_sequences = max_sequences
        self._at = 0

    @property
    def index(self) -> int:
        """Of the band in force."""
        return self._at

    @property
    def rows(self) -> int:
        """Sequences that may run at a time."""
        return min(self._bands[self._at].rows, self._max_sequences)

    def target(self, index: int) -> float:
        """Seconds within which 95 of 100 answers of a band should begin."""
        return self._bands[index].ttft_ms / 1000

    def look(self, waiting: int) -> None:
        """Take in how many wait now."""
        at = next(
            index for index, band in enumerate(self._bands) if band.below is None or waiting < band.below
        )
        self._at = max(at, self._at) if waiting else 0
