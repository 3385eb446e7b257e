"""Which events of an engine can be used, by their numbers and the life that they tell of."""

from typing import Any

import msgspec
import pytest

from backends.link import EngineLost, EventOrder
from backends.wire import Event, Evicted, Load, Snapshot, Stored


def load(incarnation: str) -> Load:
    numbers: dict[str, Any] = {field.name: 0 for field in msgspec.structs.fields(Load) if field.required}
    return Load(**numbers | {"engine": "e", "incarnation": incarnation, "finished": {}})


def snapshot(incarnation: str, sequence: int) -> Snapshot:
    return Snapshot(engine="e", incarnation=incarnation, sequence=sequence, block_size=16, keys=[])


def stored(sequence: int) -> Stored:
    return Stored(engine="e", sequence=sequence, keys=[])


def evicted(sequence: int) -> Evicted:
    return Evicted(engine="e", sequence=sequence, keys=[])


@pytest.mark.parametrize(
    ("events", "accepted"),
    [
        ([snapshot("1", 0), load("1"), stored(1), evicted(2), load("1")], [1, 1, 1, 1, 1]),
        ([snapshot("1", 7), stored(8)], [1, 1]),
        ([stored(1), load("1"), snapshot("1", 1), stored(2)], [0, 0, 1, 1]),
        ([snapshot("1", 0), stored(2), stored(3), snapshot("1", 3), stored(4)], [1, 0, 0, 1, 1]),
        ([snapshot("1", 0), stored(2), load("1")], [1, 0, 0]),
        ([snapshot("1", 2), snapshot("1", 2), evicted(3)], [1, 1, 1]),
    ],
    ids=["in order", "later join", "before the snapshot", "gap", "load in a gap", "asked twice"],
)
def test_which_events_can_be_used(events: list[Event], accepted: list[int]) -> None:
    order = EventOrder()
    assert [order.accept(event) for event in events] == [bool(flag) for flag in accepted]


@pytest.mark.parametrize("event", [snapshot("2", 0), load("2")])
def test_an_event_of_another_life_is_the_end_of_this_one(event: Event) -> None:
    order = EventOrder()
    order.accept(snapshot("1", 0))
    with pytest.raises(EngineLost, match="restarted"):
        order.accept(event)
