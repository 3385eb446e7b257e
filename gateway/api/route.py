"""`/v1/route`: where a request would go, and why, without running it."""

from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api import chat, completions
from gateway.api.chat import ChatBody
from gateway.api.completions import CompletionBody
from gateway.api.generation import Dispatches, decoded, request_of
from gateway.api.strictjson import decode_object, invalid
from gateway.config import Server
from gateway.exchange import exchange_of
from gateway.request import Decision


class Routing:
    """Takes the body of a chat or, with `prompt`, of a completion, and what either honours of headers.

    An ASGI application.
    """

    def __init__(self, dispatcher: Dispatches, server: Server) -> None:
        self._dispatcher = dispatcher
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._decide(HttpRequest(scope, receive))
        await answer(scope, receive, send)

    async def _decide(self, http: HttpRequest) -> Response:
        body = await decoded(_decode, await http.body())
        if isinstance(body, CompletionBody) and len(body.prompts) > 1:
            raise invalid("prompt", "one is decided on at a time")
        request = request_of(
            exchange_of(http.scope),
            "chat" if isinstance(body, ChatBody) else "completions",
            body,
            body.to_prompt(),
            http.headers.get("x-session-id") or None,
            http.headers,
            self._server,
        )
        decision = await self._dispatcher.decide(request)
        return Response(msgspec.json.encode(told(decision)), media_type="application/json")


def _decode(data: bytes) -> ChatBody | CompletionBody:
    return completions.decode(data) if "prompt" in decode_object(data) else chat.decode(data)


def told(decision: Decision) -> dict[str, Any]:
    """`task` is null and `good` (P(good) by tier) is empty where the client named the tier or a tool
    loop keeps it: nobody judged then. `shadows` holds the tier that each shadow policy would take."""
    route = decision.route
    assessment = route.assessment
    good = {} if assessment is None else assessment.good
    return {
        "object": "route",
        "tier": route.order[0],
        "order": route.order,
        "reason": route.reason,
        "task": None if assessment is None else assessment.task,
        "good": {tier: good[tier] for tier in decision.prompt_tokens if tier in good},
        "prompt_tokens": decision.prompt_tokens,
        "cached_tokens": decision.cached_tokens,
        "shadows": route.shadows,
    }
