"""The layers by themselves: what they do with exceptions, and with what is not HTTP. Sockets: see `tests/serving`."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.config import Server, Tenant
from gateway.drain import Drain
from gateway.errors import ApiError, ClientGone
from gateway.exchange import Exchange, exchange_of
from gateway.middleware import layers, of_router

TENANT = Tenant(name="t")


class Stack:
    """All layers around one application, and the exchanges that they have seen end."""

    def __init__(self, app: ASGIApp, **server: Any) -> None:
        self.exchanges: list[Exchange] = []
        self.keys: list[str | None] = []
        self.app = app
        for layer in reversed(layers(Server(**server), self.find, Drain(), self.observe)):
            self.app = layer.cls(self.app, *layer.args, **layer.kwargs)

    def find(self, key: str | None) -> Tenant:
        self.keys.append(key)
        return TENANT

    @contextmanager
    def observe(self, exchange: Exchange, scope: Scope) -> Iterator[None]:
        try:
            yield
        finally:
            self.exchanges.append(exchange)

    async def get(self, path: str = "/x", **headers: str) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path, headers=headers)


def raising(error: BaseException, *, late: bool = False) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if late:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise error

    return app


async def test_an_unforeseen_error_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    stack = Stack(raising(KeyError("secret")))
    answer = await stack.get()
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in answer.text
    (record,) = caplog.records
    assert record.exc_info is not None and record.exc_info[0] is KeyError
    assert answer.headers["x-request-id"] in record.getMessage()
    assert (stack.exchanges[0].status, stack.exchanges[0].error.code) == (500, "internal_error")  # type: ignore[union-attr]


async def test_a_foreseen_error_is_told_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    stack = Stack(raising(ApiError(418, "Tea.", code="tea", headers={"retry-after": "3"})))
    with caplog.at_level(logging.DEBUG, logger="gateway"):
        answer = await stack.get()
    assert (answer.status_code, answer.json()["error"]["message"]) == (418, "Tea.")
    assert answer.headers["retry-after"] == "3"
    assert not caplog.records


async def test_half_an_answer_is_not_made_whole() -> None:
    """The server has to see the exception, or the client would take the half for all."""
    stack = Stack(raising(KeyError("x"), late=True))
    with pytest.raises(KeyError):
        await stack.get()
    assert stack.exchanges[0].error is not None


async def test_a_client_that_has_gone_is_told_nothing() -> None:
    sent: list[Message] = []
    stack = Stack(raising(ClientGone()))

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    await stack.app({"type": "http", "method": "GET", "path": "/x", "headers": []}, receive, send)
    assert sent == []
    assert stack.exchanges[0].status == 499


async def test_a_cancellation_passes() -> None:
    stack = Stack(raising(asyncio.CancelledError()))
    with pytest.raises(asyncio.CancelledError):
        await stack.get()
    assert len(stack.exchanges) == 1


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/completions", "completions"),
        ("/v1/models", "models"),
        ("/metrics", "probe"),
        ("/livez", "probe"),
        ("/v1/chat/completions/x", "other"),
        ("/v1/models/org/big", "models"),
        ("/v1/responses/resp_1", "stored_responses"),
        ("/v1/responses/resp_1/cancel", "stored_responses"),
        ("/v1/responses/resp_1/input_items", "stored_responses"),
        ("/v1/responses/input_tokens", "count_tokens"),
        ("/v1/responses/resp_1/anything", "other"),
        ("/v1/conversations", "conversations"),
        ("/v1/conversations/conv_1/items/msg_1", "conversations"),
        ("/v1/conversations//items", "other"),
    ],
)
async def test_endpoints_are_a_closed_set(path: str, endpoint: str) -> None:
    stack = Stack(raising(ApiError(404, "")))
    await stack.get(path)
    [exchange] = stack.exchanges
    assert exchange.endpoint == endpoint
    assert not {"resp_1", "conv_1", "msg_1", "big", "anything"} & set(exchange.route.split("/"))


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("Bearer k", "k"),
        ("bearer  k ", "k"),
        ("BEARER k", "k"),
        ("Basic k", None),
        ("Bearer", None),
        ("k", None),
    ],
)
async def test_the_key(header: str, key: str | None) -> None:
    stack = Stack(raising(ApiError(404, "")))
    await stack.get(authorization=header)
    assert stack.keys == [key]
    assert stack.exchanges[0].tenant is TENANT


async def test_probes_need_no_key() -> None:
    stack = Stack(raising(ApiError(404, "")))
    for path in ("/livez", "/readyz"):
        await stack.get(path)
    assert stack.keys == []


async def test_other_protocols_pass_untouched() -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    stack = Stack(app)
    await stack.app({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert seen == [{"type": "lifespan"}]
    assert stack.exchanges == []


async def test_what_the_application_sees() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert exchange_of(scope).id == "mine"
        raise ApiError(404, "")

    assert (await Stack(app).get(**{"x-request-id": "mine"})).headers["x-request-id"] == "mine"


def test_the_router_s_words() -> None:
    for status, code in ((404, "unknown_url"), (405, "method_not_allowed")):
        told = of_router(HTTPException(status, headers={"allow": "GET"}), "PUT")
        assert isinstance(told, ApiError) and (told.status, told.code) == (status, code)
    other = HTTPException(400)
    assert of_router(other, "PUT") is other
