"""`/livez`, `/readyz` and `/metrics`: what orchestrators and Prometheus ask."""

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.api.generation import Dispatches
from gateway.config import Tenant
from gateway.drain import Drain
from gateway.errors import ApiError
from gateway.exchange import exchange_of
from gateway.metrics import CONTENT_TYPE


class Health:
    """`anonymous`: the tenant of callers without a key. It exists only where nobody else can connect, so it may read
    the metrics, which name every tenant; of the others, only an admin may."""

    def __init__(
        self,
        dispatcher: Dispatches,
        drain: Drain,
        metrics: Callable[[], Awaitable[bytes]],
        anonymous: Callable[[], Tenant | None],
    ) -> None:
        self._dispatcher = dispatcher
        self._drain = drain
        self._metrics = metrics
        self._anonymous = anonymous

    async def live(self, _: HttpRequest) -> Response:
        """The process answers; nothing is said of what lies behind it."""
        return Response("ok\n", media_type="text/plain")

    async def ready(self, _: HttpRequest) -> Response:
        """200 where every tier answers and new requests are taken."""
        tiers = {card.name: card.ready for card in self._dispatcher.cards()}
        ready = all(tiers.values()) and not self._drain.leaving
        body = {"ready": ready, "draining": self._drain.leaving, "tiers": tiers}
        return Response(msgspec.json.encode(body), 200 if ready else 503, media_type="application/json")

    async def metrics(self, http: HttpRequest) -> Response:
        """Always in text 0.0.4, whatever the client accepts."""
        tenant = exchange_of(http.scope).tenant
        if tenant is None or not (tenant.admin or tenant == self._anonymous()):
            raise ApiError(403, "Only an admin's key opens the metrics.", code="not_allowed")
        return Response(await self._metrics(), headers={"content-type": CONTENT_TYPE})
