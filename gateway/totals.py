"""The values of metrics at one moment, looked up by name and labels."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from prometheus_client import Metric


class Totals:
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._samples: defaultdict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
        for metric in metrics:
            for sample in metric.samples:
                self._samples[sample.name].append((sample.labels, sample.value))

    def of(self, name: str, **labels: str) -> float:
        """Added up over all samples of this full name that have these labels, beside any others."""
        return sum(
            value
            for having, value in self._samples.get(name, ())
            if all(having.get(label) == wanted for label, wanted in labels.items())
        )

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The samples of this full name by the values of these labels, added up over the others."""
        sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for having, value in self._samples.get(name, ()):
            sums[tuple(having[label] for label in labels)] += value
        return dict(sums)
