"""A gateway whose configuration changes while it runs, through its own endpoints."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs

from benchmarks import stub
from gateway.app import Gateway, create_gateway
from gateway.config import (
    AdminServer,
    Config,
    Limits,
    Price,
    Remote,
    Server,
    State,
    Tenant,
    Tier,
)
from gateway.configfile import ConfigError, parse_config
from gateway.drain import Drain
from gateway.tenants import new_key, server_secret

ASKED = {"model": "7b", "messages": [{"role": "user", "content": "x"}]}


class Site:
    """A configuration in the hand: `config` is what the next reload finds."""

    def __init__(self, folder: Path, admin: AdminServer | None = None) -> None:
        state = State(folder=str(folder))
        tier = Tier(name="7b", remotes=(Remote(url="http://127.0.0.1:9/v1", model="m"),))
        server = Server(host="0.0.0.0", admin=admin)
        self.config = Config(tiers=(tier,), state=state, server=server)
        self._secret = server_secret(self.config)
        self.admin_key = self.tenant("root", admin=True)
        self.error: Exception | None = None

    def tenant(self, name: str, **fields: Any) -> str:
        """Add a tenant; its key."""
        key, stored = new_key(self._secret)
        tenants = (*self.config.tenants, Tenant(name=name, keys=(stored,), **fields))
        self.config = structs.replace(self.config, tenants=tenants)
        return key

    def read(self) -> Config:
        if self.error is not None:
            raise self.error
        return self.config

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[httpx.AsyncClient, Gateway]]:
        gateway = create_gateway(self.config, Drain(), self.read)
        async with gateway.front.router.lifespan_context(gateway.front), client_of(gateway.front) as client:
            yield client, gateway


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


def bearing(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", "content-type": "application/json"}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_new_tenant_gets_in_and_an_old_one_does_not_any_more(site: Site) -> None:
    old = site.tenant("old")
    async with site.running() as (client, _):
        site.config = structs.replace(site.config, tenants=site.config.tenants[:1])
        new = site.tenant("new", tiers=("7b",))
        assert (await client.get("/v1/models", headers=bearing(new))).status_code == 401
        told = (await client.post("/admin/reload", headers=bearing(site.admin_key))).json()
        assert (told["number"], told["rollback"]) == (2, True)
        assert (await client.get("/v1/models", headers=bearing(new))).status_code == 200
        assert (await client.get("/v1/models", headers=bearing(old))).status_code == 401
        answer = await client.post("/v1/chat/completions", json=ASKED, headers=bearing(new))
        assert answer.status_code in (502, 503)  # all the way to a server that nobody runs
        metrics = (await client.get("/metrics", headers=bearing(site.admin_key))).text
        assert 'headrace_tokens_total{kind="prompt",tenant="new",tier="7b"} 0.0' in metrics
        assert "headrace_config_version 2.0" in metrics


async def test_that_the_last_admin_goes_is_told(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.tenant("user")
    told = (
        "no tenant with a key is an admin: nobody can use /admin, and only a hang-up signal reloads the file"
    )
    async with site.running() as (client, gateway):
        whole = site.config
        site.config = structs.replace(whole, tenants=whole.tenants[1:])
        answer = await client.post("/admin/reload", headers=bearing(site.admin_key))
        assert (answer.status_code, answer.json()["warnings"]) == (200, [told])
        assert told in caplog.text
        assert (await client.get("/admin/config", headers=bearing(site.admin_key))).status_code == 401
        site.config = whole
        gateway.reloads.hang_up()
        async with asyncio.timeout(60):
            while (await client.get("/admin/config", headers=bearing(site.admin_key))).status_code != 200:
                await asyncio.sleep(0.01)
        answer = await client.get("/admin/config", headers=bearing(site.admin_key))
        assert answer.json()["warnings"] == []


async def test_that_who_asks_shuts_out_himself_is_told(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    other = site.tenant("other", admin=True)
    told = "the key that asked for this change does not open /admin any more"
    async with site.running() as (client, _):
        whole = site.config
        for gone in (whole.tenants[1:], (structs.replace(whole.tenants[0], admin=False), *whole.tenants[1:])):
            caplog.clear()
            site.config = structs.replace(whole, tenants=gone)
            answer = await client.post("/admin/reload", headers=bearing(site.admin_key))
            assert (answer.status_code, answer.json()["warnings"]) == (200, [told])
            assert told in caplog.text
            site.config = whole
            answer = await client.post("/admin/reload", headers=bearing(other))
            assert (answer.status_code, answer.json()["warnings"]) == (200, [])
        answer = await client.post("/admin/rollback", headers=bearing(site.admin_key))
        assert answer.json()["warnings"] == [told]


async def test_aliases_and_prices_change(site: Site) -> None:
    async with site.running() as (client, _):
        tier = structs.replace(site.config.tiers[0], price=Price(input=2.5))
        site.config = structs.replace(site.config, tiers=(tier,), aliases={"gpt-4o": "7b"})
        await client.post("/admin/reload", headers=bearing(site.admin_key))
        listed = (await client.get("/v1/models", headers=bearing(site.admin_key))).json()["data"]
        assert {model["id"]: model.get("price", {}).get("input") for model in listed} == {
            "auto": None,
            "7b": 2.5,
            "gpt-4o": 2.5,
        }
        decided = await client.post(
            "/v1/route", json={**ASKED, "model": "gpt-4o"}, headers=bearing(site.admin_key)
        )
        assert decided.json().get("tier", "7b") == "7b"
        rolled = await client.post("/admin/rollback", headers=bearing(site.admin_key))
        assert rolled.json()["number"] == 3
        listed = (await client.get("/v1/models", headers=bearing(site.admin_key))).json()["data"]
        assert [model["id"] for model in listed] == ["auto", "7b"]


async def test_who_needs_no_key_changes(site: Site) -> None:
    paths = ("/v1/models", "/metrics", "/dashboard")
    async with site.running() as (client, _):
        assert [(await client.get(path)).status_code for path in paths] == [401, 401, 401]
        site.config = structs.replace(site.config, anonymous=Tenant(name="anyone"))
        await client.post("/admin/reload", headers=bearing(site.admin_key))
        assert [(await client.get(path)).status_code for path in paths] == [200, 200, 200]
        await client.post("/admin/rollback", headers=bearing(site.admin_key))
        assert [(await client.get(path)).status_code for path in paths] == [401, 401, 401]


async def test_a_servers_key_is_read_again(site: Site, tmp_path: Path) -> None:
    heard: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        heard.append(head.partition(b"authorization: bearer ")[2].partition(b"\r\n")[0])
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    port, file = server.sockets[0].getsockname()[1], tmp_path / "server-key"
    file.write_text("first\n")
    remote = Remote(url=f"http://127.0.0.1:{port}/v1", model="m", api_key_file=str(file))
    site.config = structs.replace(site.config, tiers=(Tier(name="7b", remotes=(remote,)),))
    async with server, site.running() as (client, _):
        admin = bearing(site.admin_key)
        await client.post("/v1/chat/completions", json=ASKED, headers=admin)
        file.write_text("second")
        assert (await client.post("/admin/reload", headers=admin)).status_code == 200
        await client.post("/v1/chat/completions", json=ASKED, headers=admin)
        assert set(heard) == {b"first", b"second"} and heard[-1] == b"second"
        for spoilt in ("", "two\nlines", "é"):
            file.write_text(spoilt)
            answer = await client.post("/admin/reload", headers=admin)
            message = answer.json()["error"]["message"]
            assert (answer.status_code, message) == (400, "tier 7b/0: the file server-key holds no key")
        await client.post("/v1/chat/completions", json=ASKED, headers=admin)
        assert heard[-1] == b"second"


async def test_counts_go_on_over_a_reload(site: Site) -> None:
    """Of requests that ran: others are given back."""
    key = site.tenant("acme", limits=Limits(requests_per_minute=2))
    asked = {**ASKED, "seed": stub.seed_for(0.0)}
    async with await asyncio.start_server(stub.handle, "127.0.0.1", 0) as upstream, AsyncExitStack() as stack:
        url = f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}/v1"
        tier = structs.replace(site.config.tiers[0], remotes=(Remote(url=url, model="m"),))
        site.config = structs.replace(site.config, tiers=(tier,))
        client, _ = await stack.enter_async_context(site.running())
        for _ in range(2):
            await client.post("/v1/chat/completions", json=asked, headers=bearing(key))
        site.config = structs.replace(site.config, aliases={"x": "7b"})
        await client.post("/admin/reload", headers=bearing(site.admin_key))
        refused = await client.post("/v1/chat/completions", json=asked, headers=bearing(key))
        assert refused.status_code == 429
        *others, acme = site.config.tenants
        wider = structs.replace(acme, limits=Limits(requests_per_minute=4))
        site.config = structs.replace(site.config, tenants=(*others, wider))
        await client.post("/admin/reload", headers=bearing(site.admin_key))
        statuses = [
            (await client.post("/v1/chat/completions", json=asked, headers=bearing(key))).status_code
            for _ in range(3)
        ]
        assert [status == 429 for status in statuses] == [False, False, True]


async def test_mistakes_are_told_with_their_lines_and_without_the_folder(site: Site) -> None:
    async with site.running() as (client, _):
        with pytest.raises(ConfigError) as wrong:
            parse_config("tiers: []\ncolour: red\n", "/etc/private/headrace.yaml")
        site.error = wrong.value
        answer = await client.post("/admin/reload", headers=bearing(site.admin_key))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "invalid_config")
        assert "headrace.yaml:2: colour: unknown key" in error["message"]
        assert "/etc" not in error["message"]
        site.error = None
        site.config = structs.replace(site.config, server=structs.replace(site.config.server, port=1))
        answer = await client.post("/admin/reload", headers=bearing(site.admin_key))
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "restart_required")
        assert "server.port" in answer.json()["error"]["message"]
        assert (await client.get("/admin/config", headers=bearing(site.admin_key))).json()["number"] == 1
        answer = await client.post("/admin/rollback", headers=bearing(site.admin_key))
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "no_previous_config")


async def test_a_configuration_in_the_body_is_not_taken_for_one_that_was_read(site: Site) -> None:
    async with site.running() as (client, _):
        for path in ("/admin/reload", "/admin/rollback"):
            answer = await client.post(path, headers=bearing(site.admin_key), content=b'{"tiers": []}')
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "body_not_allowed")
        assert (await client.get("/admin/config", headers=bearing(site.admin_key))).json()["number"] == 1
        answer = await client.post("/admin/reload", headers=bearing(site.admin_key), content=b"{}")
        assert answer.json()["number"] == 2


async def test_only_an_admins_key_opens_administration(site: Site) -> None:
    key = site.tenant("acme")
    async with site.running() as (client, gateway):
        assert gateway.admin is None
        for method, path in (
            ("GET", "/admin/config"),
            ("POST", "/admin/reload"),
            ("POST", "/admin/rollback"),
        ):
            headers = {"content-type": "application/json"}
            assert (await client.request(method, path, headers=headers)).status_code == 401
            assert (await client.request(method, path, headers=bearing(key))).status_code == 403


@pytest.mark.parametrize(("host", "without_key"), [("127.0.0.1", 200), ("::1", 200), ("0.0.0.0", 401)])
async def test_a_port_of_its_own_is_open_on_this_machine_alone(
    tmp_path: Path, host: str, without_key: int
) -> None:
    site = Site(tmp_path, AdminServer(host=host, port=0))
    key = site.tenant("acme")
    async with site.running() as (client, gateway):
        assert gateway.admin is not None
        async with client_of(gateway.admin) as admin:
            for path in ("/metrics", "/admin/config", "/dashboard"):
                assert (await admin.get(path)).status_code == without_key
                assert (await admin.get(path, headers=bearing(site.admin_key))).status_code == 200
                assert (await client.get(path, headers=bearing(site.admin_key))).status_code == 404
            if without_key != 200:
                assert (await admin.get("/metrics", headers=bearing(key))).status_code == 403
            assert (await admin.get("/v1/models", headers=bearing(site.admin_key))).status_code == 404
            # a page in a browser can send a bare POST anywhere, but not one of this type without being asked first
            assert (
                await admin.post("/admin/reload", headers={"content-type": "text/plain"})
            ).status_code in (401, 415)
            assert (await admin.get("/readyz")).status_code == 503
