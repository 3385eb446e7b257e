"""A histogram of what somebody else has sorted into its buckets already."""

from collections.abc import Sequence

from gateway.series import Histogram


class TalliedHistogram(Histogram):
    """`tally` instead of `observe`, for events that are told many at a time."""

    def tally(self, counts: Sequence[int], total: float) -> None:
        """`counts`: events by bucket, the last one for what is above all of them; `total`: the sum of their values."""
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        self._sum.inc(total)
