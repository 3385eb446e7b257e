"""Which replica of a tier takes a request."""

from collections.abc import Callable
from typing import Any

from gateway.tiers import LOAD_GATE

Make = Callable[..., Any]


def test_the_replica_that_holds_the_prompt_wins(backend: Make, tier_of: Make) -> None:
    tier = tier_of("7b", backend("7b/0"), backend("7b/1"))
    assert tier.pick({"7b/1": 64}).name == "7b/1"


def test_without_a_cached_prefix_the_idlest_wins(backend: Make, tier_of: Make) -> None:
    tier = tier_of("7b", backend("7b/0", in_flight=2), backend("7b/1", in_flight=1))
    assert tier.pick({}).name == "7b/1"


def test_a_cache_does_not_make_up_for_a_long_queue(backend: Make, tier_of: Make) -> None:
    hot = backend("7b/0", in_flight=LOAD_GATE)
    tier = tier_of("7b", hot, backend("7b/1"))
    assert tier.pick({"7b/0": 640}).name == "7b/0"
    hot.in_flight += 1
    assert tier.pick({"7b/0": 640}).name == "7b/1"


def test_dead_and_tried_replicas_are_left_out(backend: Make, tier_of: Make) -> None:
    tier = tier_of("7b", backend("7b/0", available=False), backend("7b/1"))
    assert tier.pick({"7b/0": 64}).name == "7b/1"
    assert tier.pick({}, {"7b/1"}) is None
    assert tier.available


def test_a_tier_holds_what_its_smallest_replica_holds(backend: Make, tier_of: Make) -> None:
    tier = tier_of("7b", backend("7b/0", context_length=500), backend("7b/1", context_length=900))
    assert tier.context_length == 500
