"""`/v1/responses/{id}`: what was kept of a response."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.dialect import Chunk
from gateway.api.generation import tenant_of
from gateway.api.paging import no_more_than, page
from gateway.api.responses_replay import replay
from gateway.api.sse import EventStream
from gateway.api.strictjson import invalid
from gateway.archive import Archive, StoredResponse
from gateway.errors import ApiError
from gateway.exchange import exchange_of
from gateway.watching import disconnected, watched

QUERY = frozenset({"stream", "starting_after", "include_obfuscation"})
AT_ONCE = 64  # events in one piece


class StoredResponses:
    """The endpoints below a response's id."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def get(self, http: HttpRequest) -> ASGIApp:
        """With `stream=true`, what was streamed, from behind the event number `starting_after`."""
        no_more_than(http.query_params, QUERY)
        stream, after = _flag(http, "stream"), _starting_after(http.query_params.get("starting_after"))
        if _flag(http, "include_obfuscation"):
            raise invalid("include_obfuscation", "this is not supported", "unsupported_parameter")
        if after is not None and not stream:
            raise invalid("starting_after", "only allowed with stream=true")
        found = await self._find(http)
        return _Replay(found, -1 if after is None else after) if stream else as_json(found.response)

    async def delete(self, http: HttpRequest) -> Response:
        response_id = http.path_params["id"]
        await self._archive.delete_response(tenant_of(exchange_of(http.scope)).name, response_id)
        return as_json({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, http: HttpRequest) -> Response:
        """Only what runs in the background could be; the connection is what cancels the others."""
        await self._find(http)
        raise invalid("id", "only a response in the background can be cancelled", "not_cancellable")

    async def compact(self, _: HttpRequest) -> Response:
        raise ApiError(
            400,
            "compact: nothing is compacted here; of a conversation that is too long, the oldest turns are left out.",
            code="unsupported",
        )

    async def items(self, http: HttpRequest) -> Response:
        return as_json(page((await self._find(http)).items, http.query_params))

    async def _find(self, http: HttpRequest) -> StoredResponse:
        return await self._archive.response(tenant_of(exchange_of(http.scope)).name, http.path_params["id"])


class _Replay:
    """The events of a stored response, those behind the number `after`, as an ASGI application."""

    def __init__(self, stored: StoredResponse, after: int) -> None:
        self._stored = stored
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await watched(self._send(EventStream(send, typed=True)), disconnected(scope, receive))

    async def _send(self, stream: EventStream) -> None:
        events = islice(replay(self._stored.response, self._stored.pieces), self._after + 1, None)
        await stream.start({})
        for some in _batched(events, AT_ONCE):
            await stream.events(some)
        await stream.done(())


def _batched(events: Iterator[Chunk], most: int) -> Iterator[list[Chunk]]:
    while some := list(islice(events, most)):
        yield some


def _flag(http: HttpRequest, name: str) -> bool:
    given = http.query_params.get(name, "false").lower()  # some clients write Python's True
    if given not in ("true", "false"):
        raise invalid(name, "must be true or false")
    return given == "true"


def _starting_after(given: str | None) -> int | None:
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= 9):
        raise invalid("starting_after", "must be the sequence_number of an event")
    return int(given)


def as_json(value: Mapping[str, Any]) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
