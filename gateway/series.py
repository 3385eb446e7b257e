"""prometheus_client's metrics, which find a series again quickly: one request counts in twenty of them."""

from bisect import bisect_left
from typing import Any, Self

import prometheus_client
from prometheus_client.metrics import MetricWrapperBase


class _Remembering(MetricWrapperBase):
    """Its `labels` checks and converts values that it has seen before no more. None of its series is ever removed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._seen: dict[tuple[Any, ...], Self] = {}
        super().__init__(*args, **kwargs)

    def labels(self, *labelvalues: Any, **labelkwargs: Any) -> Self:
        found = self._seen.get(labelvalues)
        if found is None or labelkwargs:
            found = super().labels(*labelvalues, **labelkwargs)
            if not labelkwargs:
                self._seen[labelvalues] = found
        return found


class Counter(_Remembering, prometheus_client.Counter):
    """As prometheus_client's; to count nothing costs nothing."""

    def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:
        """Exemplars are not kept: the text format has no place for them. Raises ValueError for less than nothing."""
        if amount < 0:
            raise ValueError("a counter only rises")
        if amount:
            self._value.inc(amount)


class Gauge(_Remembering, prometheus_client.Gauge):
    """As prometheus_client's."""


class Histogram(_Remembering, prometheus_client.Histogram):
    """As prometheus_client's, which goes through its buckets one by one."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Exemplars are not kept: the text format has no place for them."""
        self._sum.inc(amount)
        self._buckets[bisect_left(self._upper_bounds, amount)].inc(1)
