"""Sessions, as the story of a request keeps them."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ApiError
from tests.gateway.story.in_the_hand import Gateway

Make = Callable[..., Any]


async def test_a_session_grows(gateway: Gateway) -> None:
    first = await gateway.run("One", session="new")
    async with aclosing(first.deltas):
        async for _ in first.deltas:
            pass
    assert first.session is not None
    assert first.headers["x-session-id"] == first.session
    await gateway.say("Two", session=first.session)
    said = [("user", "One", False), ("assistant", "Hello world", False)]
    assert await gateway.history(first.session) == [*said, ("user", "Two", False), said[1]]
    page = gateway.metrics.render().decode()
    assert 'headrace_sessions_total{event="opened"} 1.0' in page
    assert 'headrace_sessions_total{event="recalled"} 1.0' in page


async def test_an_aborted_answer_is_remembered_as_partial(gateway: Gateway) -> None:
    answer = await gateway.run("One", session="new")
    await anext(aiter(answer.deltas))
    await answer.deltas.aclose()
    assert await gateway.history(str(answer.session)) == [
        ("user", "One", False),
        ("assistant", "Hello", True),
    ]
    assert gateway.limits.settled == [3 + 1]


async def test_two_turns_at_once_lose_none(gateway: Gateway) -> None:
    opened = await gateway.run("One", session="new")
    await opened.deltas.aclose()
    await asyncio.gather(
        *(gateway.say(f"Turn {n}", session=opened.session, id=f"req_{n}") for n in range(2, 5))
    )
    said = [content for _, content, _ in await gateway.history(str(opened.session))]
    assert {"Turn 2", "Turn 3", "Turn 4"} <= set(said)
    assert said.count("Hello world") == 3


async def test_a_long_history_loses_its_oldest_turns(tmp_path: Path, backend: Make, tier_of: Make) -> None:
    one = backend("7b/0", context_length=100)
    gateway = Gateway(tmp_path, [tier_of("7b", one)])
    opened = await gateway.run("a" * 30, session="new", max_tokens=5)
    await opened.deltas.aclose()
    for letter in "bcd":
        await gateway.say(letter * 30, session=opened.session, max_tokens=5)
    asked = "".join(message.content for message in one.seen[-1].prompt.messages)
    assert asked.endswith("d" * 30)
    assert "a" not in asked
    assert len(asked) <= 95
    stored = [content for _, content, _ in await gateway.history(str(opened.session))]
    assert "a" * 30 in stored  # dropped from the prompt, not from the session


async def test_a_session_that_cannot_be_opened_costs_nothing(gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "sessions.sqlite").write_text("This is no database. " * 100)
    with pytest.raises(ApiError) as refused:
        await gateway.run("One", session="new")
    assert (refused.value.status, refused.value.code) == (503, "session_store_unavailable")
    assert gateway.limits.money[-1] == ("settled", 0)
    assert gateway.limits.settled == [0]
