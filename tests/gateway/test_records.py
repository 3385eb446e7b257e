"""One line per request in files: what is in it, what is not, and what a bad disk costs."""

import asyncio
import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.prompt import ChatMessage, Prompt
from gateway.app import create_app
from gateway.config import Config, Remote, State, Telemetry, Tenant, Tier
from gateway.drain import Drain
from gateway.exchange import Exchange
from gateway.metrics import Metrics
from gateway.records import MAX_QUEUE, REST, Records
from gateway.request import Request

NOON = 1_893_499_200.0  # 2030-01-01 12:00 UTC
DAY = 24 * 3600.0


class Desk:
    """Records in a folder, on a clock that stands still."""

    def __init__(self, folder: Path, file_bytes: int = 1 << 20, secret: bytes = b"s" * 32) -> None:
        self.folder = folder
        self.now = NOON
        self.metrics = Metrics(["7b"], {}, ["acme"])
        self.begun = self.given = 0
        self.records = Records(
            folder, secret, self.metrics, file_bytes=file_bytes, keep_days=30, clock=self._clock
        )

    def _clock(self) -> float:
        """It is looked at once for each record, when its turn comes."""
        now = self.now
        self.begun += 1
        return now

    def write(self, text: str = "x", request_id: str = "r", session: str | None = None) -> None:
        request = Request(
            id=request_id, endpoint="chat", tenant=Tenant(name="acme"), model="auto", session=session,
            prompt=Prompt(messages=(ChatMessage(role="user", content=text),)), timeout=1.0, priority=0,
        )  # fmt: skip
        exchange = Exchange(id=request_id, endpoint="chat", requests=(request,), status=200)
        self.records.write(exchange, None)
        self.given += 1

    async def begun_all(self) -> None:
        """The last of them is being written, and none will look at the clock again."""
        while self.begun < self.given:
            await asyncio.sleep(0.001)

    def lines(self) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for path in sorted(self.folder.glob("*.jsonl"))
            for line in path.read_text().splitlines()
        ]

    def lost(self, reason: str) -> float:
        text = self.metrics.render().decode()
        start = f'headrace_records_lost_total{{reason="{reason}"}} '
        return next(float(line[len(start) :]) for line in text.splitlines() if line.startswith(start))


@pytest.fixture
def desk(tmp_path: Path) -> Callable[..., Desk]:
    return lambda **options: Desk(tmp_path / "records", **options)


async def test_equal_prompts_have_equal_digests_that_only_this_secret_makes(
    tmp_path: Path, desk: Callable[..., Desk]
) -> None:
    mine, others = desk(), Desk(tmp_path / "others", secret=b"t" * 32)
    for text, session in (("a secret", "sess_1"), ("a secret", None), ("another", "sess_1")):
        mine.write(text, session=session)
    others.write("a secret", session="sess_1")
    await mine.records.close()
    await others.records.close()
    first, second, third = mine.lines()
    (foreign,) = others.lines()
    assert first["asked"][0]["prompt"] == second["asked"][0]["prompt"] != third["asked"][0]["prompt"]
    assert first["session"] == third["session"] is not None
    assert second["session"] is None
    assert foreign["asked"][0]["prompt"] != first["asked"][0]["prompt"]
    assert first["asked"][0]["characters"] == len("a secret")
    assert "secret" not in json.dumps(mine.lines()) and "sess_1" not in json.dumps(mine.lines())


async def test_only_the_owner_can_read_them(desk: Callable[..., Desk]) -> None:
    mine = desk()
    mine.write()
    await mine.records.close()
    assert stat.S_IMODE(mine.folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in mine.folder.iterdir()] == [0o600]


async def test_a_file_ends_when_it_is_full_and_with_its_day(desk: Callable[..., Desk]) -> None:
    mine = desk(file_bytes=4096)
    for number in range(20):
        mine.write(request_id=f"r{number}")
    await mine.begun_all()
    mine.now += DAY
    mine.write(request_id="tomorrow")
    await mine.records.close()
    sizes = {path.name: path.stat().st_size for path in mine.folder.iterdir()}
    assert len(sizes) > 2 and max(sizes.values()) <= 4096
    assert {name[:10] for name in sizes} == {"2030-01-01", "2030-01-02"}
    assert sorted(line["id"] for line in mine.lines()) == sorted([*(f"r{n}" for n in range(20)), "tomorrow"])


async def test_old_files_are_forgotten_with_the_day_and_nothing_else_is(desk: Callable[..., Desk]) -> None:
    mine = desk()
    mine.folder.mkdir()
    for name in ("2029-12-01-7-0.jsonl", "2029-12-02-7-0.jsonl", "notes.txt", "mine.jsonl"):
        (mine.folder / name).write_text("")
    mine.write()
    await mine.records.close()
    left = {path.name for path in mine.folder.iterdir()}
    assert left >= {"2029-12-02-7-0.jsonl", "notes.txt", "mine.jsonl"}
    assert "2029-12-01-7-0.jsonl" not in left


@pytest.mark.parametrize("later", [REST, -3600], ids=["after a rest", "with a clock that was put back"])
async def test_a_full_disk_costs_records_and_is_tried_again(desk: Callable[..., Desk], later: float) -> None:
    mine = desk()
    mine.folder.mkdir()
    file = mine.folder / f"2030-01-01-{os.getpid()}-0.jsonl"
    file.symlink_to("/dev/full")
    for _ in range(3):
        mine.write()
    await mine.begun_all()
    while mine.lost("disk") < 3:
        await asyncio.sleep(0.001)
    file.unlink()
    mine.now += later
    mine.write(request_id="again")
    await mine.records.close()
    assert [line["id"] for line in mine.lines()] == ["again"]


async def test_a_disk_that_hangs_holds_nobody_up(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = desk()
    really = os.write

    def slow(descriptor: int, data: bytes) -> int:
        time.sleep(0.5)
        return really(descriptor, data)

    monkeypatch.setattr(os, "write", slow)
    started = time.monotonic()
    for _ in range(MAX_QUEUE + 10):
        mine.write()
    assert mine.lost("queue") > 0
    assert time.monotonic() - started < 60
    monkeypatch.undo()
    await mine.records.close()


async def test_a_request_through_the_whole_gateway(tmp_path: Path) -> None:
    config = Config(
        tiers=(Tier(name="7b", remotes=(Remote(url="http://127.0.0.1:9/v1", model="m"),)),),
        anonymous=Tenant(name="anonymous"),
        state=State(folder=str(tmp_path / "state")),
        telemetry=Telemetry(records=str(tmp_path / "records")),
    )
    app = create_app(config, Drain())
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
    ):
        for model in ("7b", "canary-model"):
            asked = {
                "model": model,
                "messages": [{"role": "user", "content": "canary-prompt"}],
                "max_tokens": 9,
            }
            await client.post("/v1/chat/completions", json=asked)
        await client.get("/v1/models")
    (file,) = (tmp_path / "records").iterdir()
    text = file.read_text()
    assert "canary" not in text
    failed, unknown = map(json.loads, text.splitlines())
    assert (failed["v"], failed["endpoint"], failed["tenant"]) == (1, "chat", "anonymous")
    assert failed["status"] in (502, 503) and failed["code"]
    assert (failed["asked"][0]["max_tokens"], failed["asked"][0]["messages"]) == (9, 1)
    assert (unknown["status"], unknown["code"]) == (404, "model_not_found")
