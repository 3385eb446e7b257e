"""A sample put to servers that are busy, or gone, for a while or for good."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from backends.backend import BackendError, Delta, Generation, Overloaded, Rejected, Unavailable, Usage
from classifier import Assessment
from gateway.config import Config, Remote, Tier
from gateway.learning import recorder
from gateway.learning.checkers import Regex
from gateway.learning.recorder import Errand, missing, record
from gateway.learning.recordings import Book
from gateway.learning.samples import Sample

SERVER = Remote(url="http://127.0.0.1:1/v1", model="m")
CONFIG = Config(tiers=(Tier(name="small", remotes=(SERVER,)),))
SAMPLES = [Sample(prompt=f"Say {n}.", checker=Regex("yes")) for n in range(3)]
ANSWER = [
    Delta(text="yes", tokens=1),
    Delta(finish="stop", usage=Usage(prompt_tokens=3, completion_tokens=1)),
]


class Moody:
    """Fails by each of `failures` in turn, in the middle of an answer, and answers from then on."""

    in_flight = 0

    def __init__(self, failures: list[BackendError]) -> None:
        self.failures = failures
        self.asked = 0

    async def stream(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        self.asked += 1
        yield ANSWER[0]
        if self.failures:
            raise self.failures.pop(0)
        yield ANSWER[1]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr("gateway.learning.recorder.asyncio.sleep", sleep)
    return found


async def put(failures: list[BackendError], book: Book, monkeypatch: pytest.MonkeyPatch) -> Moody:
    server = Moody(failures)

    @contextlib.asynccontextmanager
    async def running(config: Config, rows: int) -> AsyncIterator[dict[str, Any]]:
        yield {"small": [server]}

    monkeypatch.setattr(recorder, "running", running)
    errand = Errand(config=CONFIG, samples=SAMPLES, tiers=("small",), judge="small", parallel=1)
    try:
        await record(errand, book, lambda text: Assessment(task="qa", good={}, seconds=0.0), lambda: None)
    finally:
        assert missing(errand, book) == len(SAMPLES) - len(book.recordings)
    return server


async def test_who_is_busy_for_a_while_is_asked_again(
    tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = [Overloaded("full"), Unavailable("gone"), Overloaded("full", retry_after=9.0)]
    with Book(tmp_path / "r.jsonl") as book:
        server = await put(busy, book, monkeypatch)
        assert [each.good for each in book.recordings] == [True] * 3 and server.asked == 6
    assert waits == [1.0, 2.0, 9.0]


async def test_who_never_answers_ends_the_run_and_what_was_answered_stays(
    tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Book(tmp_path / "r.jsonl") as book:
        with pytest.raises(Unavailable, match="gone"):
            await put([Unavailable("gone")] * recorder.TRIES, book, monkeypatch)
        assert len(waits) == recorder.TRIES - 1
        await put([], book, monkeypatch)
        assert len(book.recordings) == 3


async def test_a_sample_that_cannot_be_taken_is_named(
    tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Book(tmp_path / "r.jsonl") as book:
        with pytest.raises(ValueError, match=r"^small: the sample that begins 'Say 0\.': too long$"):
            await put([Rejected("too long")], book, monkeypatch)
    assert waits == []
