"""The queue, in the order in which sequences would run were there no tenants."""

from collections.abc import Callable

import pytest

from backends.engine.sequence import Sequence
from backends.engine.waiting import WaitingQueue

Make = Callable[..., Sequence]


def test_by_urgency_then_by_arrival_and_first_of_each_tenant(sequence: Make) -> None:
    queue = WaitingQueue()
    work = [
        ("b", 0, False),
        ("a", 0, True),
        ("a", 1, False),
        ("a", 0, False),
        ("b", 0, False),
        ("a", -1, True),
    ]
    for number, (tenant, priority, batch) in reversed(list(enumerate(work))):
        queue.add(sequence([1] * (number + 1), number=number, tenant=tenant, priority=priority, batch=batch))
        queue.check()
    assert [each.number for each in queue] == [0, 3, 4, 2, 5, 1]
    assert queue.levels() == [(False, 0), (False, 1), (True, -1), (True, 0)]
    assert {tenant: head.number for tenant, head in queue.heads((False, 0)).items()} == {"b": 0, "a": 3}
    assert queue.heads((False, 9)) == {}
    assert (len(queue), queue.tokens, queue.tenants()) == (6, 21, {"a", "b"})


def test_what_is_taken_away_leaves_nothing(sequence: Make) -> None:
    queue = WaitingQueue()
    one, other = sequence([1, 2], number=0, tenant="a"), sequence([1], number=1, tenant="b")
    queue.add(one)
    queue.add(other)
    queue.remove(one)
    queue.check()
    assert (list(queue), queue.tokens, queue.tenants()) == ([other], 1, {"b"})
    queue.remove(other)
    assert not queue and not queue.levels() and not queue.tokens
    with pytest.raises(KeyError):
        queue.remove(other)
