"""Several answers to one prompt: the first is remembered, all are paid for."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import pytest

from backends.backend import CallPiece, Delta, Usage
from gateway.answer import AnswerStream
from gateway.cascade import Attempt
from gateway.ledger import Entry

USAGE = Usage(prompt_tokens=5, completion_tokens=6)
DELTAS = (
    Delta(index=0, text="One", tokens=1),
    Delta(index=1, text="Uno", tokens=1),
    Delta(index=0, text=".", tokens=2, finish="stop"),
    Delta(index=1, text="!", tokens=2, finish="length", usage=USAGE),
)


@dataclass
class Ended:
    """What the epilogue was told, each time."""

    seconds: float = 0.0
    told: list[tuple[object, ...]] = field(default_factory=list)

    async def settle(self, last: Delta | None, seconds: float, tokens: int, cached: int) -> None:
        self.told.append((last, seconds, tokens))

    async def remember(self, text: str, calls: Sequence[CallPiece], *, complete: bool) -> None:
        assert not calls
        self.told.append((text, complete))


@pytest.fixture
def ended() -> Ended:
    return Ended()


def stream(ended: Ended, deltas: Sequence[Delta]) -> AnswerStream:
    async def rest() -> AsyncGenerator[Delta, None]:
        for delta in deltas[1:]:
            yield delta

    entry = Entry(tier="7b", replica="7b/0")
    attempt = Attempt(tier=None, replica=None, entry=entry, held=deltas[:1], rest=rest())  # type: ignore[arg-type]
    return AnswerStream(attempt, ended)  # type: ignore[arg-type]


async def test_the_first_one_is_remembered(ended: Ended) -> None:
    answer = stream(ended, DELTAS)
    assert [delta async for delta in answer] == list(DELTAS)
    await answer.aclose()
    assert ended.told == [(DELTAS[-1], 0.0, 6), ("One.", True)]


async def test_a_complete_one_is_remembered_first_and_settled_later(ended: Ended) -> None:
    """As of when it was complete, each of it once."""
    answer = stream(ended, DELTAS)
    assert [delta async for delta in answer] == list(DELTAS)
    ended.seconds = 7.0
    for _ in range(2):
        await answer.remember()
    assert ended.told == [("One.", True)]
    for _ in range(2):
        await answer.aclose()
    assert ended.told == [("One.", True), (DELTAS[-1], 0.0, 6)]


async def test_it_is_not_complete_before_all_are(ended: Ended) -> None:
    """All tokens that were made are counted, also of an answer that nobody remembers."""
    answer = stream(ended, DELTAS)
    for _ in range(3):
        await anext(answer)
    await answer.aclose()
    assert ended.told == [(None, 0.0, 4), ("One.", False)]
