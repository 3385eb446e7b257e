"""The page over HTTP: its files, its state, and the box that tries a prompt.

Whoever may read the metrics may read this.
"""

import asyncio
from collections.abc import Callable, Mapping
from importlib.resources import files

import msgspec
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.sse import HEADERS as EVENT_HEADERS
from gateway.config import Tenant
from gateway.credentials import PAGE, challenge
from gateway.dashboard.overview import Overview
from gateway.drain import Drain
from gateway.errors import ApiError
from gateway.exchange import exchange_of
from gateway.watching import disconnected, watched

EVERY = 1.0  # seconds between two states in the stream
MAX_VIEWERS = 32
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SAFETY = {
    # Nothing from outside, nothing inline, no frame around it.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


class Dashboard:
    """`anonymous`: as in `gateway.api.health.Health`. Paths below `PAGE`; `tries` are those that run prompts."""

    def __init__(
        self,
        overview: Overview,
        drain: Drain,
        anonymous: Callable[[], Tenant | None],
        tries: Mapping[str, ASGIApp],
    ) -> None:
        self._overview = overview
        self._drain = drain
        self._anonymous = anonymous
        self._tries = tries
        self._viewers = 0

    def routes(self) -> list[Route]:
        return [
            Route(PAGE, self._guarded(_file("index.html")), methods=["GET"]),
            *(
                Route(f"{PAGE}/{name}", self._guarded(_file(name)), methods=["GET"])
                for name in _names()
                if name != "index.html"
            ),
            Route(f"{PAGE}/state", self._guarded(self._state), methods=["GET"]),
            Route(f"{PAGE}/events", self._guarded(self._events), methods=["GET"]),
            Route(f"{PAGE}/requests/{{id}}", self._guarded(self._request), methods=["GET"]),
            *(
                Route(f"{PAGE}/{path}", self._guarded(app), methods=["POST"])
                for path, app in self._tries.items()
            ),
        ]

    def _guarded(self, app: ASGIApp) -> ASGIApp:
        return _Guarded(app, self._may_look)

    def _may_look(self, tenant: Tenant | None) -> bool:
        return tenant is not None and (tenant.admin or tenant == self._anonymous())

    async def _encoded(self) -> bytes:
        return msgspec.json.encode(await self._overview.state())

    async def _state(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _json(await self._encoded())(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = await self._overview.request(scope["path_params"]["id"])
        if record is None:
            raise ApiError(404, "This request is not kept, or not any more.", code="request_not_found")
        await _json(msgspec.json.encode(record))(scope, receive, send)

    async def _events(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._viewers >= MAX_VIEWERS:
            raise ApiError(
                503,
                f"The page is open {MAX_VIEWERS} times already.",
                type="server_error",
                code="too_many_viewers",
            )
        self._viewers += 1
        try:
            await watched(self._feed(send), disconnected(scope, receive))
        finally:
            self._viewers -= 1

    async def _feed(self, send: Send) -> None:
        """A state each second; the stream ends by itself when the gateway leaves, so that nobody waits for it."""
        headers = [(k.encode(), v.encode()) for k, v in {**SAFETY, **EVENT_HEADERS}.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while not self._drain.leaving:
            frame = b"data: %s\n\n" % await self._encoded()
            await send({"type": "http.response.body", "body": frame, "more_body": True})
            await asyncio.sleep(EVERY)
        await send({"type": "http.response.body", "body": b""})


class _Guarded:
    """Only for those who may look. Others are asked again, as a browser keeps no second chance for a 403."""

    def __init__(self, app: ASGIApp, may_look: Callable[[Tenant | None], bool]) -> None:
        self._app = app
        self._may_look = may_look

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._may_look(exchange_of(scope).tenant):
            headers = challenge(scope["path"])
            raise ApiError(401, "Only an admin's key opens the page.", code="not_allowed", headers=headers)
        await self._app(scope, receive, send)


def _names() -> list[str]:
    return sorted(file.name for file in files("gateway.dashboard").joinpath("static").iterdir())


def _file(name: str) -> ASGIApp:
    """Read once; no path of a client's ever reaches the disk."""
    body = files("gateway.dashboard").joinpath("static", name).read_bytes()
    kind = TYPES[name[name.rindex(".") :]]
    return Response(body, headers=SAFETY, media_type=kind)


def _json(body: bytes) -> Response:
    return Response(body, headers=SAFETY, media_type="application/json")
