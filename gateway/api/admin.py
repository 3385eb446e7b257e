"""`/admin/*`: which configuration holds, and changing it. For admins' keys alone, or on a loopback port of its own."""

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from msgspec.structs import replace
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from gateway.config import Tenant
from gateway.configfile import ConfigError
from gateway.credentials import key_of
from gateway.errors import ApiError
from gateway.exchange import exchange_of
from gateway.reload import NoPrevious, RestartNeeded, Version

logger = logging.getLogger(__name__)

OUT = "the key that asked for this change does not open /admin any more"


class Changes(Protocol):
    """As `gateway.reload.Reloads`, here or in another process."""

    async def current(self) -> Version: ...

    async def reload(self) -> Version: ...

    async def rollback(self) -> Version: ...

    def hang_up(self) -> None: ...


class Admin:
    def __init__(self, reloads: Changes, find_tenant: Callable[[str | None], Tenant]) -> None:
        """`find_tenant`: of a key, as things are when it is called; raises ApiError where it is nobody's."""
        self._reloads = reloads
        self._find_tenant = find_tenant

    def routes(self) -> list[Route]:
        return [
            Route("/admin/config", self.config, methods=["GET"]),
            Route("/admin/reload", self.reload, methods=["POST"]),
            Route("/admin/rollback", self.rollback, methods=["POST"]),
        ]

    async def config(self, http: HttpRequest) -> Response:
        _check(http)
        return _told(await self._reloads.current())

    async def reload(self, http: HttpRequest) -> Response:
        await _check_nothing_said(http)
        return _told(self._warned(http, await _changed(self._reloads.reload)))

    async def rollback(self, http: HttpRequest) -> Response:
        await _check_nothing_said(http)
        return _told(self._warned(http, await _changed(self._reloads.rollback)))

    def _warned(self, http: HttpRequest, version: Version) -> Version:
        """With a warning where who asked has shut out himself, while others can still use `/admin`."""
        if version.warnings or self._is_admin(http):
            return version
        logger.warning("%s", OUT)
        return replace(version, warnings=(OUT,))

    def _is_admin(self, http: HttpRequest) -> bool:
        try:
            return self._find_tenant(key_of(http.url.path, exchange_of(http.scope).headers)).admin
        except ApiError:
            return False


async def _changed(change: Callable[[], Awaitable[Version]]) -> Version:
    try:
        return await change()
    except ValueError as error:
        raise refusal(error) from error


def refusal(error: ValueError) -> ApiError:
    """What a client is told of a change that was not made."""
    match error:
        case RestartNeeded():
            return ApiError(409, f"The configuration {error}.", code="restart_required")
        case NoPrevious():
            return ApiError(409, f"Nothing to roll back: {error}.", code="no_previous_config")
        case ConfigError():
            return ApiError(400, error.without_folders, code="invalid_config")
    return ApiError(400, str(error), code="invalid_config")


def _check(http: HttpRequest) -> None:
    tenant = exchange_of(http.scope).tenant
    if tenant is None or not tenant.admin:
        raise ApiError(403, "Only an admin's key opens this.", code="not_allowed")


async def _check_nothing_said(http: HttpRequest) -> None:
    """Whoever sends a configuration would take it for what holds now."""
    _check(http)
    if (await http.body()).strip() not in (b"", b"{}"):
        raise ApiError(400, "No body is taken: the configuration is in its file.", code="body_not_allowed")


def _told(version: Version) -> Response:
    return Response(msgspec.json.encode(version), media_type="application/json")
