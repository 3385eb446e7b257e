"""`/v1/messages/count_tokens`: how long a prompt is, without running it."""

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.api.generation import Dispatches, decoded, tenant_of
from gateway.api.messages import decode_count
from gateway.config import Server
from gateway.exchange import exchange_of
from gateway.request import Request


class TokenCount:
    """Counts by the tokenizer of the tier that the model means; for `auto`, of the cheapest one allowed."""

    def __init__(self, dispatcher: Dispatches, server: Server) -> None:
        self._dispatcher = dispatcher
        self._server = server

    async def count(self, http: HttpRequest) -> Response:
        body = await decoded(decode_count, await http.body())
        exchange = exchange_of(http.scope)
        tenant = tenant_of(exchange)
        request = Request(
            id=exchange.id,
            endpoint="messages",
            tenant=tenant,
            model=body.model,
            prompt=body.to_prompt(),
            session=None,
            timeout=self._server.default_timeout,
            priority=tenant.priority,
        )
        counted = {"input_tokens": await self._dispatcher.count(request)}
        return Response(msgspec.json.encode(counted), media_type="application/json")
