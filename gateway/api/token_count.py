"""How long a prompt is, without running it: `/v1/messages/count_tokens` and `/v1/responses/input_tokens`."""

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from backends.prompt import Prompt
from gateway.api.generation import Dispatches, decoded, tenant_of
from gateway.api.messages import decode_count
from gateway.api.responses_dialect import Responses
from gateway.config import Server
from gateway.exchange import exchange_of
from gateway.request import Endpoint, Request


class TokenCount:
    """Counts by the tokenizer of the tier that the model means; for `auto`, of the cheapest one allowed."""

    def __init__(self, dispatcher: Dispatches, server: Server, responses: Responses) -> None:
        self._dispatcher = dispatcher
        self._server = server
        self._responses = responses

    async def of_message(self, http: HttpRequest) -> Response:
        body = await decoded(decode_count, await http.body())
        return _told({"input_tokens": await self._count(http, "messages", body.model, body.to_prompt())})

    async def of_response(self, http: HttpRequest) -> Response:
        """With all that a response would go on from."""
        body = await decoded(self._responses.decode, await http.body())
        prompt, _ = await self._responses.open(body, tenant_of(exchange_of(http.scope)))
        tokens = await self._count(http, "responses", body.model, prompt)
        return _told({"object": "response.input_tokens", "input_tokens": tokens})

    async def _count(self, http: HttpRequest, endpoint: Endpoint, model: str, prompt: Prompt) -> int:
        exchange = exchange_of(http.scope)
        tenant = tenant_of(exchange)
        request = Request(
            id=exchange.id,
            endpoint=endpoint,
            tenant=tenant,
            model=model,
            prompt=prompt,
            session=None,
            timeout=self._server.default_timeout,
            priority=tenant.priority,
        )
        return await self._dispatcher.count(request)


def _told(counted: dict[str, str | int]) -> Response:
    return Response(msgspec.json.encode(counted), media_type="application/json")
