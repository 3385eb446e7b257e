"""`/v1/responses/{id}`: what was kept of a response."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.api.generation import tenant_of
from gateway.api.paging import no_more_than, page
from gateway.api.strictjson import invalid
from gateway.archive import Archive, StoredResponse
from gateway.exchange import exchange_of


class StoredResponses:
    """The endpoints below a response's id."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def get(self, http: HttpRequest) -> Response:
        no_more_than(http.query_params, frozenset({"stream"}))
        if http.query_params.get("stream", "false") != "false":
            raise invalid("stream", "a stored response is not streamed", "unsupported_parameter")
        return as_json((await self._find(http)).response)

    async def delete(self, http: HttpRequest) -> Response:
        response_id = http.path_params["id"]
        await self._archive.delete_response(tenant_of(exchange_of(http.scope)).name, response_id)
        return as_json({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, http: HttpRequest) -> Response:
        """Only what runs in the background could be; the connection is what cancels the others."""
        await self._find(http)
        raise invalid("id", "only a response in the background can be cancelled", "not_cancellable")

    async def items(self, http: HttpRequest) -> Response:
        return as_json(page((await self._find(http)).items, http.query_params))

    async def _find(self, http: HttpRequest) -> StoredResponse:
        return await self._archive.response(tenant_of(exchange_of(http.scope)).name, http.path_params["id"])


def as_json(value: Mapping[str, Any]) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
