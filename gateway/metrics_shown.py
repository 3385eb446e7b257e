"""What of the metrics a scrape gets to see."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.registry import Collector

from gateway.engine_metrics import OLD_NAMES


class Shown(Collector):
    """Metrics less the `_created` samples, which double the page and which nobody reads."""

    def __init__(self, source: Collector, old_names: bool) -> None:
        """`old_names`: with the gauges of `OLD_NAMES` by those too."""
        self._source = source
        self._old_names = OLD_NAMES if old_names else {}

    def collect(self) -> Iterator[Metric]:
        for metric in self._source.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
            if metric.name in self._old_names:
                yield _renamed(metric, self._old_names[metric.name])


def _renamed(metric: Metric, name: str) -> Metric:
    old = Metric(name, f"Old name of {metric.name}.", metric.type)
    for sample in metric.samples:
        old.add_sample(name, sample.labels, sample.value)
    return old
