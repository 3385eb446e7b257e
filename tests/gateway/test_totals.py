"""Values by name and labels, however their samples come."""

from prometheus_client import CollectorRegistry, Counter

from gateway.totals import Totals


def test_sums_over_the_labels_that_are_not_named() -> None:
    registry = CollectorRegistry()
    spent = Counter("cost", "Money.", ("tenant", "tier"), registry=registry)
    for tenant, tier, money in (("acme", "7b", 1.0), ("acme", "70b", 2.0), ("other", "7b", 4.0)):
        spent.labels(tenant, tier).inc(money)
    totals = Totals(registry.collect())
    assert (totals.of("cost_total"), totals.of("cost_total", tier="7b")) == (7.0, 5.0)
    assert totals.of("cost_total", tier="13b") == totals.of("nothing") == 0.0
    assert totals.by("cost_total", "tenant") == {("acme",): 3.0, ("other",): 4.0}
    assert totals.by("cost_total", "tier", "tenant")["7b", "acme"] == 1.0
    assert totals.by("nothing", "tier") == {}
