"""Who keeps a tool loop: told by stored turns, or remembered from the last answer."""

from typing import Any

import pytest

from backends.prompt import Prompt
from gateway.config import Tenant
from gateway.loops import REMEMBERED, Loops, told
from gateway.request import Request
from sessions import Turn

ASK = Turn("user", "What is the weather?")
CALL = Turn("assistant", "(calls)")
RESULT = Turn("tool", "21 degrees")


def request(tenant: str = "acme", answered_by: str | None = None) -> Request:
    fields: dict[str, Any] = {"id": "r", "endpoint": "chat", "model": "auto", "session": None}
    fields["answered_by"] = answered_by
    return Request(tenant=Tenant(name=tenant), prompt=Prompt(), timeout=1.0, priority=0, **fields)


def test_the_tier_is_kept_until_a_person_speaks() -> None:
    loops = Loops()
    loops.answered(request(), (ASK,), "13b")
    assert loops.tier(request(), (ASK, CALL, RESULT)) == "13b"
    assert loops.tier(request(), (ASK, CALL, RESULT, CALL, RESULT)) == "13b"
    assert loops.tier(request(), (ASK, CALL, RESULT, Turn("user", "And tomorrow?"))) is None


def test_failing_over_inside_a_loop_moves_all_of_it() -> None:
    loops = Loops()
    loops.answered(request(), (ASK,), "13b")
    loops.answered(request(), (ASK, CALL, RESULT), "70b")
    assert loops.tier(request(), (ASK, CALL, RESULT, CALL, RESULT)) == "70b"


def test_stored_turns_tell_by_themselves() -> None:
    turns = (ASK, Turn("assistant", "(calls)", tier="70b"), RESULT)
    assert Loops().tier(request(), turns) == "70b"


def test_what_a_person_has_said_since_ends_what_they_tell() -> None:
    turns = (ASK, Turn("assistant", "(calls)", tier="70b"), RESULT)
    assert told(turns) == "70b"
    assert told((*turns, Turn("user", "And tomorrow?"), CALL, RESULT)) is None


def test_stored_turns_that_only_the_dialect_has_read_come_before_what_is_remembered() -> None:
    loops = Loops()
    loops.answered(request(), (ASK,), "13b")
    assert loops.tier(request(answered_by="70b"), (ASK, CALL, RESULT)) == "70b"
    assert loops.tier(request(answered_by="70b"), (ASK, CALL, RESULT, ASK)) is None


@pytest.mark.parametrize("turns", [(), (ASK,), (Turn("assistant", "Hi"), ASK)])
def test_there_is_no_loop_before_an_answer(turns: tuple[Turn, ...]) -> None:
    assert Loops().tier(request(), turns) is None


def test_neither_other_conversations_nor_other_tenants_are_meant() -> None:
    loops = Loops()
    loops.answered(request(), (ASK,), "13b")
    assert loops.tier(request("other"), (ASK, CALL, RESULT)) is None
    assert loops.tier(request(), (Turn("user", "Who?"), CALL, RESULT)) is None


def test_memory_is_bounded_and_the_oldest_goes() -> None:
    loops = Loops()
    for n in range(REMEMBERED + 1):
        loops.answered(request(), (Turn("user", str(n)),), "13b")
    assert loops.tier(request(), (Turn("user", "0"), CALL, RESULT)) is None
    assert loops.tier(request(), (Turn("user", "1"), CALL, RESULT)) == "13b"
