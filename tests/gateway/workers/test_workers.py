"""Two workers are one gateway: to clients, to limits, to whoever looks, and whatever becomes of one of them."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.server import bind
from gateway.workers.parent import reserve
from tests.gateway.workers.conftest import Site, StartSite


@pytest.fixture(scope="module")
def site(start_site: StartSite) -> Iterator[Site]:
    with start_site() as running:
        yield running


async def test_what_is_counted_and_shown_is_what_all_have_done(site: Site) -> None:
    answers = await site.load(60, tokens=5)
    assert [answer.status_code for answer in answers if isinstance(answer, httpx.Response)] == [200] * 60
    for _ in range(6):  # whichever of them is asked
        totals = site.totals()
        assert totals.of("headrace_requests_total", endpoint="chat", tier="7b", status="200") == 60
        assert totals.of("headrace_request_seconds_count", tier="7b") == 60
        assert totals.of("gen_ai_server_request_duration_seconds_count", gen_ai_response_model="7b") == 60
        assert totals.of("gen_ai_client_token_usage_sum", gen_ai_token_type="output") == 300
        assert totals.of("headrace_tokens_total", tenant="acme", kind="completion") == 300
        assert totals.of("vllm:request_generation_tokens_count") == 60
        assert totals.of("headrace_backend_up", backend="7b/0") == 1
        state = site.ask("/dashboard/state").json()
        assert (state["requests"], state["tiers"][0]["answers"], len(state["latest"])) == (60, 60, 40)
        assert (state["tenants"][0]["requests"], state["tenants"][0]["tokens"]) == (60, 60 * 8)
        assert state["troubles"] == [] and state["tiers"][0]["replicas"][0]["condition"] == "up"
    # what the engine says of itself is heard by all and counted once
    site.eventually(lambda: site.totals().of("vllm:generation_tokens_total") == 300)
    (reached,) = {
        answer.headers["x-request-id"] for answer in answers[:1] if isinstance(answer, httpx.Response)
    }
    for _ in range(6):
        assert site.ask(f"/dashboard/requests/{reached}").json()["completion_tokens"] == 5
    assert site.ask("/dashboard/requests/nobodys").status_code == 404
    site.eventually(lambda: len(site.records()) == 60)
    # Both have served, each with a file of its own.
    assert len(list((site.folder / "records").iterdir())) == 2


async def test_generations_of_both_are_seen_while_they_run(site: Site) -> None:
    load = asyncio.create_task(site.load(12, at_once=12, tokens=1500))

    def all_seen() -> bool:
        state = site.ask("/dashboard/state").json()
        shown = state["tiers"][0]["replicas"][0]["in_flight"]
        return bool(
            site.totals().of("headrace_backend_inflight", backend="7b/0") == shown == state["running"] == 12
        )

    await asyncio.to_thread(site.eventually, all_seen)
    assert all(isinstance(answer, httpx.Response) for answer in await load)


async def test_one_that_is_killed_takes_only_its_own_requests_with_it(site: Site) -> None:
    before = site.totals().of("headrace_requests_total", endpoint="chat")
    load = asyncio.create_task(site.load(16, at_once=16, tokens=1500))
    await asyncio.to_thread(site.eventually, lambda: site.totals().of("headrace_backend_inflight") == 16)
    victim, other = site.workers
    os.kill(victim, signal.SIGKILL)
    outcomes = Counter(isinstance(outcome, httpx.Response) and outcome.status_code for outcome in await load)
    assert set(outcomes) == {200, False} and min(outcomes.values()) > 0
    await asyncio.to_thread(site.eventually, lambda: victim not in site.workers and len(site.workers) == 2)
    assert other in site.workers
    # the engine has let go of what nobody waits for, and nothing that was counted is lost or counted twice
    await asyncio.to_thread(site.eventually, lambda: site.totals().of("vllm:num_requests_running") == 0)
    assert site.totals().of("headrace_requests_total", endpoint="chat") == before + outcomes[200]
    assert site.totals().of("headrace_backend_inflight") == 0
    await asyncio.to_thread(site.eventually, lambda: len(_served_by(site)) == 2)


def _served_by(site: Site) -> set[str]:
    """Files of records that grow when requests come: one for each worker that serves."""

    def sizes() -> dict[str, int]:
        return {file.name: file.stat().st_size for file in (site.folder / "records").iterdir()}

    old = sizes()
    asyncio.run(site.load(16))
    time.sleep(0.3)
    return {name for name, size in sizes().items() if size > old.get(name, 0)}


def test_a_change_reaches_all_of_them_and_those_that_come_later(site: Site) -> None:
    file = site.folder / "headrace.yaml"
    first = file.read_text()
    file.write_text(first + "aliases: {small: 7b}\n")
    assert site.ask("/admin/reload", "POST").json()["number"] == 2
    assert _aliases(site) == {True}
    killed = site.workers[0]
    os.kill(killed, signal.SIGKILL)
    site.eventually(lambda: killed not in site.workers and len(site.workers) == 2)
    file.write_text(first + "aliases: {small: 70b}\n")
    refused = site.ask("/admin/reload", "POST")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_config")
    file.write_text(first.replace("workers: 2", "workers: 3"))
    refused = site.ask("/admin/reload", "POST")
    assert refused.status_code == 409 and "server.workers" in refused.json()["error"]["message"]
    assert {site.ask("/admin/config").json()["number"] for _ in range(6)} == {2}
    assert _aliases(site) == {True}
    file.write_text(first)
    site.process.send_signal(signal.SIGHUP)
    site.eventually(lambda: site.ask("/admin/config").json()["number"] == 3)
    assert _aliases(site) == {False}
    assert site.ask("/admin/rollback", "POST").json()["number"] == 4
    assert _aliases(site) == {True}
    assert site.totals().of("headrace_config_version") == 4
    assert site.totals().of("headrace_config_reloads_total", result="failure") == 2


def _aliases(site: Site) -> set[bool]:
    """Whether the workers know the alias."""
    headers = {"authorization": f"Bearer {site.key}"}
    return {
        any(
            model["id"] == "small"
            for model in httpx.get(f"{site.url}/v1/models", headers=headers).json()["data"]
        )
        for _ in range(12)
    }


@pytest.mark.slow
def test_one_that_stands_still_is_replaced(start_site: StartSite) -> None:
    """Its event loop does not answer; the others serve on, and nobody waits for it when somebody looks."""
    with start_site() as site:
        frozen = site.workers[0]
        os.kill(frozen, signal.SIGSTOP)
        site.eventually(lambda: _served(site))
        site.eventually(lambda: frozen not in site.workers and len(site.workers) == 2)
        site.eventually(lambda: all(_served(site) for _ in range(6)))


def _served(site: Site) -> bool:
    try:
        return httpx.get(f"{site.admin}/metrics", timeout=4).status_code == 200
    except httpx.HTTPError:
        return False


async def test_limits_hold_over_both(start_site: StartSite) -> None:
    with start_site(rate=1, burst=20) as site:
        statuses = Counter(
            answer.status_code
            for answer in await site.load(60, at_once=20)
            if isinstance(answer, httpx.Response)
        )
        assert statuses == {200: 20, 429: 40}
        assert site.totals().of("headrace_ratelimit_decisions_total", decision="allow") == 20


@pytest.mark.parametrize(("number", "running"), [(signal.SIGTERM, 8), (signal.SIGINT, 0)])
async def test_they_leave_in_good_order(start_site: StartSite, number: signal.Signals, running: int) -> None:
    with start_site() as site:
        processes = [*site.workers, *site.children("fake_engine")]
        assert len(processes) == 3
        load = asyncio.create_task(site.load(running, at_once=8, tokens=1000))
        await asyncio.to_thread(
            site.eventually, lambda: site.totals().of("headrace_backend_inflight") == running
        )
        site.process.send_signal(number)
        answers: list[Any] = await load
        assert [answer.status_code for answer in answers] == [200] * running
        assert await asyncio.to_thread(site.process.wait, 20) == 0
        assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()]
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{site.url}/livez")
        assert not running or len(site.records()) == running


def test_they_die_with_their_parent(start_site: StartSite) -> None:
    with start_site() as site:
        running = site.workers
        site.process.kill()
        site.eventually(lambda: not any(_alive(pid) for pid in running))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_keeps_a_worker_from_serving_is_said_once(tmp_path: Path) -> None:
    text = (
        "tiers: [{name: 7b, remotes: [{url: 'http://127.0.0.1:9/v1', model: m, api_key_env: NO_SUCH_KEY}]}]"
    )
    file = tmp_path / "headrace.yaml"
    file.write_text(text + "\nserver: {port: 0}\nanonymous: {name: a}\ntelemetry: {log_level: error}\n")
    words = [sys.executable, "-m", "gateway.cli", "serve", "--workers", "2", "--config", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "tier 7b/0: the environment variable NO_SUCH_KEY holds no key\n"


def test_a_port_that_somebody_has_is_not_shared() -> None:
    with reserve("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        with bind("127.0.0.1", port, share=True) as worker, bind("127.0.0.1", port, share=True) as another:
            worker.listen()
            another.listen()
            with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
                reserve("127.0.0.1", port)
