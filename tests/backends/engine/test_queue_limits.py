"""Who still finds a place in a queue that is full."""

from collections.abc import Callable
from typing import Any

import pytest

from backends.wire import Grammar

Make = Callable[..., Any]


def places(engine: Any, tenant: str, most: int = 100, **options: Any) -> int:
    """How many more of the tenant's requests are let in."""
    for found in range(most):
        try:
            engine.submit([1] * 10, tenant=tenant, **options)
        except AssertionError as refusal:
            assert "overloaded" in str(refusal)
            return found
        engine.engine.check()
    return most


def test_a_tenant_alone_has_the_whole_queue_and_no_more(rig: Make) -> None:
    engine = rig(max_sequences=1, max_waiting=12)
    assert places(engine, "a") == 1 + 12
    engine.run()


def test_a_flood_shuts_nobody_else_out(rig: Make) -> None:
    engine = rig(max_sequences=1, max_waiting=12)
    places(engine, "a")
    # Halves, thirds; twice as many in all.
    assert [places(engine, tenant) for tenant in "bcda"] == [6, 4, 2, 0]
    engine.run()
    assert all(answer.finish == "length" for answer in engine.answers.values())


@pytest.mark.parametrize("grammar", [None, Grammar("regex", "a+")])
def test_who_waits_for_a_grammar_waits_too(rig: Make, grammar: Grammar | None) -> None:
    engine = rig(max_sequences=1, max_waiting=12)
    assert places(engine, "a", grammar=grammar) == 1 + 12
    assert places(engine, "a") == 0
    load = engine.engine.load()
    assert load.refused == {"requests": 2} and (load.deferred > 0) == (grammar is not None)
    assert places(engine, "b", grammar=grammar) == 6
    engine.run()


def test_tokens_are_parted_likewise(rig: Make) -> None:
    engine = rig(max_sequences=1, max_waiting_tokens=60)
    assert places(engine, "a") == 6  # of ten tokens each
    assert [places(engine, tenant) for tenant in "bca"] == [3, 2, 0]
    assert engine.engine.load().refused == {"tokens": 4}
    engine.run()


def test_those_who_wait_in_small_number_are_never_asked_who_they_are(rig: Make) -> None:
    engine = rig(max_sequences=2, max_waiting=4)
    assert [places(engine, tenant, most=2) for tenant in "abc"] == [2, 2, 2]
    assert places(engine, "d") == 1  # a quarter of four
    engine.run()
