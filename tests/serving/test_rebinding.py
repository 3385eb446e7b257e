"""A stranger's page, whose name points to this machine by now, in a browser on it."""

from typing import Any

import httpx
import pytest

from gateway.app import create_gateway
from gateway.config import AdminServer, Config, Remote, Server, State, Tenant, Tier
from gateway.drain import Drain
from gateway.tenants import new_key, server_secret

REBOUND = {"host": "evil.example:8080", "origin": "http://evil.example:8080"}
ASKED = {"model": "7b", "messages": [{"role": "user", "content": "x"}]}
DOORS = (
    ("GET", "/v1/models"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/conversations"),
    ("GET", "/metrics"),
    ("GET", "/dashboard"),
    ("GET", "/dashboard/state"),
    ("POST", "/dashboard/chat/completions"),
    ("GET", "/nowhere"),
)


@pytest.mark.parametrize("key", [{}, {"authorization": "Bearer any"}])
def test_it_gets_nothing_of_a_gateway_without_keys(front: Any, key: dict[str, str]) -> None:
    with httpx.Client(base_url=front.url, headers=REBOUND | key) as page:
        for method, path in DOORS:
            answer = page.request(method, path, json=ASKED if method == "POST" else None)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed"), path
        assert page.get("/livez").status_code == 200
    assert front.dispatcher.requests == []


async def test_it_gets_nothing_of_the_operators_port_and_a_key_opens_the_front_by_any_name(
    tmp_path: Any,
) -> None:
    tier = Tier(name="7b", remotes=(Remote(url="http://127.0.0.1:9/v1", model="m"),))
    state, server = State(folder=str(tmp_path)), Server(admin=AdminServer(port=0))
    key, stored = new_key(server_secret(Config(tiers=(tier,), state=state)))
    tenants = (Tenant(name="acme", keys=(stored,)),)
    config = Config(tiers=(tier,), state=state, server=server, tenants=tenants)
    gateway = create_gateway(config, Drain(), lambda: config)
    assert gateway.admin is not None
    transport = httpx.ASGITransport(gateway.admin)
    async with (
        gateway.front.router.lifespan_context(gateway.front),
        httpx.AsyncClient(transport=transport, base_url="http://evil.example:9090") as page,
    ):
        for method, path in (("GET", "/admin/config"), ("POST", "/admin/reload"), ("GET", "/metrics")):
            answer = await page.request(method, path, headers={"content-type": "application/json"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed")
        assert (await page.get("/admin/config", headers={"host": "localhost"})).status_code == 200
        elsewhere = httpx.ASGITransport(gateway.front)
        async with httpx.AsyncClient(transport=elsewhere, base_url="http://gateway.example") as client:
            known = {"authorization": f"Bearer {key}"}
            assert (await client.get("/v1/models", headers=known)).status_code == 200
