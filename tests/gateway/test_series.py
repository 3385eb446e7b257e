"""Metrics that remember their series show the same as prometheus_client's."""

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.series import Counter, Gauge, Histogram


def test_a_series_is_found_again_however_it_is_asked_for() -> None:
    counter = Counter("asked", "How often.", ("who", "how"), registry=CollectorRegistry())
    first = counter.labels("a", "b")
    assert counter.labels("a", "b") is first
    assert counter.labels(who="a", how="b") is first
    assert counter.labels("b", "a") is not first


@pytest.mark.parametrize("labels", [("only one",), ("one", "two", "three")])
def test_labels_that_do_not_fit_are_refused_each_time(labels: tuple[str, ...]) -> None:
    gauge = Gauge("held", "How many.", ("who", "how"), registry=CollectorRegistry())
    for _ in range(2):
        with pytest.raises(ValueError, match="label"):
            gauge.labels(*labels)


def test_what_is_shown_is_theirs() -> None:
    registries = CollectorRegistry(), CollectorRegistry()
    kinds = (
        (Counter, Gauge, Histogram),
        (prometheus_client.Counter, prometheus_client.Gauge, prometheus_client.Histogram),
    )
    for registry, (counter, gauge, histogram) in zip(registries, kinds, strict=True):
        counted = counter("asked", "How often.", ("who",), registry=registry)
        held = gauge("held", "How many.", registry=registry)
        took = histogram("took", "How long.", ("who",), buckets=(1, 2), registry=registry)
        for who in ("a", "b", "a"):
            counted.labels(who).inc(2)
            took.labels(who).observe(1.5)
        held.set(3)
    ours, theirs = (generate_latest(registry).decode() for registry in registries)
    assert _without_times(ours) == _without_times(theirs)


def _without_times(shown: str) -> list[str]:
    return [line for line in shown.splitlines() if "_created" not in line]
