"""`/v1/route`: where a request would go, and why, without running it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.dialect import Dialect
from gateway.api.generation import Dispatches, asked, decoded
from gateway.api.strictjson import decode_object, invalid
from gateway.config import Server
from gateway.exchange import exchange_of
from gateway.request import Decision, Endpoint, Judged

AnyDialect = Dialect[Any, Any]


class Routing:
    """Takes the body of any of these dialects, and what that one honours of headers. An ASGI application."""

    def __init__(self, dispatcher: Dispatches, server: Server, dialects: Sequence[AnyDialect]) -> None:
        """`dialects`: the first one is meant where nothing tells of another."""
        self._dispatcher = dispatcher
        self._server = server
        self._default = dialects[0]
        self._dialects = {dialect.endpoint: dialect for dialect in dialects}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._decide(HttpRequest(scope, receive))
        await answer(scope, receive, send)

    async def _decide(self, http: HttpRequest) -> Response:
        fields = await decoded(decode_object, await http.body())
        meant = _meant(fields, exchange_of(http.scope).headers)
        _, requests, _ = await asked(self._dialects.get(meant, self._default), http, self._server)
        if len(requests) > 1:
            raise invalid("prompt", "one is decided on at a time")
        decision = await self._dispatcher.decide(requests[0])
        return Response(msgspec.json.encode(told(decision)), media_type="application/json")


def _meant(fields: Mapping[str, Any], headers: Mapping[str, str]) -> Endpoint:
    """Bodies of chats and messages look alike, but Anthropic's clients name the version of their API."""
    if "anthropic-version" in headers:
        return "messages"
    if "input" in fields:
        return "responses"
    return "completions" if "prompt" in fields else "chat"


def told(decision: Decision) -> dict[str, Any]:
    """`task` is null and `good` (P(good) by tier) is empty where the client named the tier or a tool
    loop keeps it: nobody assessed it then. `shadows` holds the tier that each shadow policy would take, `judged` what
    would be looked at of the answer, and which tier would take over where it is not good enough."""
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
        "judged": _judged(decision.judged),
    }


def _judged(judged: Judged) -> dict[str, Any]:
    """`reason`: why the answer would not be judged."""
    if judged.why_not is not None:
        return {"when": "never", "reason": judged.why_not}
    return {
        "when": judged.when,
        "after": judged.after,
        "at_end": judged.at_end,
        "threshold": judged.threshold,
        "next": judged.next,
    }
