"""Whoever waits for a server that says nothing gives up; a long answer is waited for."""

import asyncio
import time

import pytest

from backends.breaker import Breaker
from gateway.guard import Guard
from gateway.pulse import AGAIN, SILENT, TICK, Pulse


class Down(Exception):
    pass


class Server:
    """Answers in so many seconds: questions in `busy`, pings in `away`."""

    def __init__(self) -> None:
        self.busy = self.away = 0.0
        self.asked = self.pings = self.cancelled = 0
        self.fault: Exception | None = None
        self.breaker = Breaker(failures=3, pause=60.0)
        self.lost = 0
        self.pulse = Pulse(self.ping, self.breaker.alive, lost=self.lose)
        self.guard = Guard(self.breaker, self.pulse)

    async def answer(self) -> str:
        self.asked += 1
        try:
            await asyncio.sleep(self.busy)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return "answer"

    async def ping(self) -> None:
        self.pings += 1
        await asyncio.sleep(self.away)
        if self.fault is not None:
            raise self.fault

    def lose(self) -> None:
        self.lost += 1

    async def refuse(self) -> str:
        raise Down("refused")

    async def ask(self) -> str:
        return await self.guard.ask(self.answer(), failures=Down, answers=())


@pytest.fixture
def server() -> Server:
    return Server()


async def test_an_answer_that_comes_at_once_needs_no_ping(server: Server) -> None:
    assert await server.ask() == "answer"
    await asyncio.sleep(3 * TICK)
    assert server.pings == 0


async def test_a_long_answer_is_waited_for_while_pings_are_answered(server: Server) -> None:
    server.busy = 4 * SILENT * TICK
    assert await server.ask() == "answer"
    assert server.pings > 1


async def test_one_silence_is_enough_and_the_question_is_taken_back(server: Server) -> None:
    server.busy = server.away = 60.0
    with pytest.raises(Down, match="silent"):
        await server.ask()
    for _ in range(5):
        with pytest.raises(Down, match="left in peace"):
            await server.ask()
    assert (server.asked, server.cancelled) == (1, 1)


async def test_all_who_wait_share_one_ping(server: Server) -> None:
    server.busy = server.away = 60.0
    outcomes = await asyncio.gather(*(server.ask() for _ in range(20)), return_exceptions=True)
    assert all(isinstance(outcome, Down) for outcome in outcomes)
    assert server.pings == 1


async def test_a_ping_that_fails_is_no_sign_of_life(server: Server) -> None:
    server.busy, server.fault = 60.0, OSError("refused")
    with pytest.raises(Down, match="silent"):
        await server.ask()


async def test_answers_to_others_are_signs_of_life(server: Server) -> None:
    server.busy, server.away = 3 * SILENT * TICK, 60.0
    asking = asyncio.create_task(server.ask())
    await asyncio.sleep(0)
    while not asking.done():
        await server.pulse.heard(asyncio.sleep(TICK / 2), Down(), Down())
    assert await asking == "answer"


async def test_a_late_answer_to_a_ping_ends_the_rest(server: Server) -> None:
    """A moment's silence is no reason to do without the store for longer than it lasts."""
    server.busy, server.away = 60.0, 2 * SILENT * TICK
    with pytest.raises(Down, match="silent"):
        await server.ask()
    server.busy = 0.0
    await asyncio.sleep(server.away)
    assert await server.ask() == "answer"


async def test_one_that_was_given_up_is_found_back_without_a_request(server: Server) -> None:
    server.busy, server.fault = 60.0, OSError("refused")
    with pytest.raises(Down, match="silent"):
        await server.ask()
    assert server.breaker.open
    server.fault = None
    async with asyncio.timeout(10):
        while server.breaker.open:
            await asyncio.sleep(TICK)
    assert server.asked == 1


async def test_one_that_refuses_is_asked_until_it_answers(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that is not there fails at once: nobody has to wait for it to be suspicious."""
    server.fault = OSError("refused")
    with pytest.raises(Down, match="refused"):
        await server.guard.ask(server.refuse(), failures=Down, answers=())
    async with asyncio.timeout(10):
        while server.lost < 2:
            await asyncio.sleep(TICK)
        server.fault, lost = None, server.lost
        while server.pings == lost:
            await asyncio.sleep(TICK)
    await asyncio.sleep(2 * AGAIN)
    assert (server.pings, server.lost) == (lost + 1, lost)
    assert caplog.messages == ["the store does not answer: refused"]  # told once, and from the start


async def test_nobody_asks_once_it_is_closed(server: Server) -> None:
    server.busy, server.fault = 60.0, OSError("refused")
    with pytest.raises(Down, match="silent"):
        await server.ask()
    await server.pulse.close()
    await server.pulse.close()
    pings = server.pings
    await asyncio.sleep(2 * AGAIN)
    assert server.pings == pings


async def test_a_stall_of_this_process_is_no_silence_of_the_server(server: Server) -> None:
    server.busy = 4 * TICK
    asking = asyncio.create_task(server.ask())
    await asyncio.sleep(0)
    time.sleep(2 * SILENT * TICK)
    assert await asking == "answer"


async def test_a_caller_who_leaves_takes_the_question_along(server: Server) -> None:
    server.busy = 60.0
    asking = asyncio.create_task(server.ask())
    await asyncio.sleep(3 * TICK)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert server.cancelled == 1 and not server.breaker.open


class Starved:
    """A process that gets no CPU for `stall` seconds, again and again, with hardly any in between."""

    def __init__(self, stall: float) -> None:
        self._stall = stall

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._stalls())
        await asyncio.sleep(0)

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _stalls(self) -> None:
        while True:
            time.sleep(self._stall)
            await asyncio.sleep(0.001)


async def test_a_starved_process_waits_longer_but_not_for_ever(server: Server) -> None:
    server.busy = (SILENT + 2) * 2 * TICK  # so many ticks as they ring here, and no ping comes back either
    server.away = 60.0
    async with Starved(2 * TICK):
        assert await server.ask() == "answer"
        server.busy = 60.0
        with pytest.raises(Down, match="silent"):
            await server.ask()


async def test_a_moment_of_listening_after_many_of_starving_is_not_many(server: Server) -> None:
    """Ticks that rang late used to count in full as soon as one rang in time."""
    server.busy = server.away = 60.0
    asking = asyncio.create_task(server.ask())
    async with Starved(2 * TICK):
        while not server.pings:
            await asyncio.sleep(0)
        await asyncio.sleep((SILENT - 2) * 2 * TICK)
    await asyncio.sleep(2 * TICK)
    assert not asking.done()
    with pytest.raises(Down, match="silent"):
        await asking


async def test_a_ping_is_not_waited_for_for_ever(server: Server) -> None:
    """A host that has vanished never says so."""
    server.away = 60.0
    server.pulse.feel()
    async with asyncio.timeout(10):
        while server.pings < 2:
            await asyncio.sleep(TICK)
    assert server.lost == 1


async def test_who_is_hurried_waits_no_longer_while_others_hear(server: Server) -> None:
    server.busy = 60.0

    async def ask(*, hurried: bool) -> str:
        return await server.guard.ask(server.answer(), failures=Down, answers=(), hurried=hurried)

    patient = asyncio.create_task(ask(hurried=False))
    for _ in range(4):  # more than failures that open the breaker
        with pytest.raises(Down, match="slow"):
            await ask(hurried=True)
    assert not patient.done() and not server.breaker.open
    patient.cancel()
