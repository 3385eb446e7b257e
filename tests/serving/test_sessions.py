"""What a tenant sees of its sessions, over real sockets and real stores."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from sessions import Call, Turn

TURNS = (
    Turn("user", "Add 1 and 2."),
    Turn("assistant", "", tier="7b", calls=(Call("call_1", "add", "{}"),)),
    Turn("tool", "3", answers="call_1"),
    Turn("assistant", "Thr", tier="7b", partial=True),
)


@pytest.fixture
def client(front: Any) -> Iterator[httpx.Client]:
    headers = {"authorization": "Bearer hr_admin"}
    with httpx.Client(base_url=front.url, headers=headers) as made:
        yield made


def made(front: Any, tenant: str, *turns: Turn) -> str:
    async def make() -> str:
        session = await front.stores.sessions.create(tenant)
        if turns:
            await front.stores.sessions.append(tenant, session.id, turns, 0)
        return str(session.id)

    return asyncio.run_coroutine_threadsafe(make(), front.loop).result(5)


def test_they_are_listed_told_and_deleted(client: httpx.Client, front: Any) -> None:
    assert client.get("/v1/sessions").json()["data"] == []
    one, two = made(front, "admin", *TURNS), made(front, "admin")
    listed = client.get("/v1/sessions").json()
    assert [session["id"] for session in listed["data"]] == [two, one]
    assert (listed["first_id"], listed["has_more"]) == (two, False)
    assert client.get(f"/v1/sessions?limit=1&after={two}").json()["data"][0]["id"] == one
    told = client.get(f"/v1/sessions/{one}").json()
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    assert told == {
        "id": one,
        "object": "session",
        "messages": [
            {"role": "user", "content": "Add 1 and 2."},
            {"role": "assistant", "content": "", "tool_calls": [call], "tier": "7b", "partial": False},
            {"role": "tool", "content": "3", "tool_call_id": "call_1"},
            {"role": "assistant", "content": "Thr", "tier": "7b", "partial": True},
        ],
    }
    assert client.delete(f"/v1/sessions/{one}").json()["deleted"] is True
    assert client.get(f"/v1/sessions/{one}").status_code == 404
    assert [session["id"] for session in client.get("/v1/sessions").json()["data"]] == [two]


def test_a_foreign_one_is_answered_like_an_unknown_one(client: httpx.Client, front: Any) -> None:
    foreign, unknown = made(front, "tenant", *TURNS), "sess_" + 32 * "0"
    for method in ("GET", "DELETE"):
        told = {
            client.request(method, f"/v1/sessions/{id}").text.replace(id, "ID") for id in (foreign, unknown)
        }
        assert len(told) == 1 and "session_not_found" in told.pop()
    owner = {"authorization": "Bearer hr_tenant"}
    assert client.get(f"/v1/sessions/{foreign}", headers=owner).status_code == 200


def test_a_conversation_goes_with_its_session(client: httpx.Client) -> None:
    conversation = client.post("/v1/conversations", json={}).json()["id"]
    [session] = client.get("/v1/sessions").json()["data"]
    assert client.delete(f"/v1/sessions/{session['id']}").status_code == 200
    assert client.get(f"/v1/conversations/{conversation}").status_code == 404


def test_queries_that_mean_nothing_are_named(client: httpx.Client) -> None:
    for query in ("limit=0", "after=x", "order=up", "tenant=other"):
        answer = client.get(f"/v1/sessions?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == query.partition("=")[0]


def test_a_store_that_is_down(client: httpx.Client, front: Any) -> None:
    front.stores.spoil()
    for method, path in (("GET", "/v1/sessions"), ("GET", "/v1/sessions/x"), ("DELETE", "/v1/sessions/x")):
        answer = client.request(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "session_store_unavailable")
