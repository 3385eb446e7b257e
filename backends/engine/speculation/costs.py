"""What a step costs with drafts in it, in multiples of one without: measured, never taken for granted.

A CPU that reads its weights once for eight rows verifies drafts for nearly nothing; one that does not loses a third of
its speed with nine of ten drafts accepted. Times are compared with what the step would have been predicted to take
without drafts, so that contexts that grow, and a machine that slows down, do not look like costs.
"""

from collections import defaultdict

OUTLIER = 3.0  # times as much, or as little, as before: more is taken for this
WEIGHT = 0.1  # of the last step, once there have been many


class StepCosts:
    """By rows of a step and tokens of all their drafts."""

    def __init__(self) -> None:
        self._levels: defaultdict[int, dict[int, Mean]] = defaultdict(dict)

    def learn(self, rows: int, drafted: int, seconds: float, plain: float | None) -> None:
        """A step without prompts took so long; `plain`: predicted for it without drafts, None where nothing is."""
        if plain and seconds > 0:
            self._levels[rows].setdefault(drafted, Mean()).add(seconds / plain)

    def tried(self, rows: int) -> int:
        """The most drafted tokens beside so many rows that have been measured."""
        return max(self._levels[rows], default=0) if rows in self._levels else 0

    def ratio(self, rows: int, drafted: int) -> float | None:
        """The cost of drafts: between two measured numbers of them on a line, beyond them on the last one.

        None where a step without, or any with drafts has not been measured for so many rows.
        """
        known = {count: mean.value for count, mean in self._levels.get(rows, {}).items()}
        if 0 not in known or len(known) < 2:
            return None
        points = sorted((count, value / known[0]) for count, value in known.items())
        below = max((point for point in points[:-1] if point[0] <= drafted), default=points[0])
        above = points[points.index(below) + 1]
        slope = (above[1] - below[1]) / (above[0] - below[0])
        return max(1.0, below[1] + slope * (drafted - below[0]))


class Mean:
    """Of all at first, then more and more of the last ones."""

    def __init__(self, prior: float | None = None) -> None:
        """`prior` counts as one of them."""
        self.value = prior or 0.0
        self._count = 0 if prior is None else 1

    def add(self, value: float) -> None:
        self._count += 1
        if self._count > 1:
            value = min(max(value, self.value / OUTLIER), self.value * OUTLIER)
        self.value += (value - self.value) * max(1 / self._count, WEIGHT)
