"""Reserving and settling a tenant's limits around a request, also when the store does not answer."""

import asyncio
import logging
from dataclasses import dataclass

from gateway.config import Tenant
from gateway.errors import ApiError
from gateway.limits import LimitExceeded, LimitStore, LimitStoreUnavailable, Reservation, ratelimit_headers
from gateway.metrics import Metrics

logger = logging.getLogger(__name__)

LIMIT_WORDS = {
    "requests": "requests per minute",
    "tokens": "tokens per minute",
    "parallel": "parallel requests",
}


@dataclass(slots=True, kw_only=True)
class Charge:
    """One reservation and the store that holds it. `degraded`: a local share, since the store did not answer."""

    tenant: Tenant
    reservation: Reservation
    store: LimitStore
    degraded: bool

    @property
    def headers(self) -> dict[str, str]:
        headers = ratelimit_headers(self.reservation)
        if self.degraded:
            headers["x-headrace-degraded"] = "limits"
        return headers


class Meter:
    """`fallback` decides alone, with this gateway's own counts, while `store` does not answer."""

    def __init__(self, store: LimitStore, fallback: LimitStore, metrics: Metrics) -> None:
        self._store = store
        self._fallback = fallback
        self._metrics = metrics

    async def reserve(self, tenant: Tenant, request_id: str, tokens: int) -> Charge:
        """Raises ApiError 429; nothing is consumed then."""
        try:
            try:
                charge = await self._reserve(self._store, tenant, request_id, tokens, degraded=False)
                self._metrics.state_backend("limits", up=True)
            except LimitStoreUnavailable as error:
                logger.warning("limits: %s; deciding by this gateway's own counts", error)
                self._metrics.state_backend("limits", up=False)
                charge = await self._reserve(self._fallback, tenant, request_id, tokens, degraded=True)
        except LimitExceeded as refusal:
            self._metrics.limit(refusal.limit, "deny")
            raise _refused(refusal) from refusal
        self._metrics.limit("all", "degraded" if charge.degraded else "allow")
        return charge

    async def _reserve(
        self, store: LimitStore, tenant: Tenant, request_id: str, tokens: int, *, degraded: bool
    ) -> Charge:
        reservation = await store.reserve(tenant.name, tenant.limits, request_id, tokens)
        return Charge(tenant=tenant, reservation=reservation, store=store, degraded=degraded)

    async def settle(self, charge: Charge, used: int) -> None:
        """Never lost to a cancellation: the client's going away is no reason to keep a reservation."""
        settling = asyncio.ensure_future(self._settle(charge, used))
        try:
            await asyncio.shield(settling)
        except asyncio.CancelledError:
            await settling
            raise

    async def _settle(self, charge: Charge, used: int) -> None:
        try:
            await charge.store.settle(charge.reservation, charge.tenant.limits, used)
        except LimitStoreUnavailable as error:
            logger.warning("limits: not settled, the lease will expire: %s", error)
            self._metrics.state_backend("limits", up=False)


def _refused(refusal: LimitExceeded) -> ApiError:
    words = LIMIT_WORDS[refusal.limit]
    if refusal.retry_after is None:
        message = f"The request needs more than the tenant's whole allowance of {words}."
        code = "request_too_large"
    else:
        message = f"The tenant's limit of {words} is reached. Try again in {refusal.retry_after:.1f} s."
        code = "rate_limit_exceeded"
    return ApiError(429, message, type=refusal.limit, code=code, headers=ratelimit_headers(refusal))
