"""Reserving and settling a tenant's limits around a request, also when the store does not answer."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter

from msgspec.structs import replace

from gateway.account import budgets, unlimited
from gateway.config import Budget, Limits, Tenant
from gateway.errors import ApiError
from gateway.limits import (
    BUDGETS,
    NOTHING,
    Amount,
    Left,
    LimitExceeded,
    LimitName,
    LimitStore,
    LimitStoreUnavailable,
    Reservation,
    Unsure,
    ratelimit_headers,
)
from gateway.metrics import Metrics

logger = logging.getLogger(__name__)

LIMIT_WORDS: dict[LimitName, str] = {
    "requests": "requests per minute",
    "tokens": "tokens per minute",
    "input_tokens": "input tokens per minute",
    "output_tokens": "output tokens per minute",
    "parallel": "parallel requests",
    "budget_day": "money per day",
    "budget_month": "money per month",
}
QUOTA = "insufficient_quota"  # what SDKs do not try again


def share_of(limits: Limits, gateways: int) -> Limits:
    """The part of one of `gateways`, rounded up so that none is left with nothing. Budgets are not shared out."""
    parts = {
        name: -(-whole // gateways)
        for name in Limits.__struct_fields__
        if isinstance(whole := getattr(limits, name), int)
    }
    return replace(limits, **parts, budget=Budget())


@dataclass(slots=True, kw_only=True)
class Charge:
    """One reservation. `degraded`: of a local share, since the store did not answer.

    `parts` of it are not settled yet; the others have used `used`, if any of them `ran`. `unsure`: what the store that
    did not answer may hold for it all the same.
    """

    tenant: Tenant
    reservation: Reservation
    degraded: bool
    parts: int = 1
    used: Amount = NOTHING
    ran: bool = False
    unsure: Reservation | None = None

    @property
    def headers(self) -> dict[str, str]:
        headers = ratelimit_headers(self.reservation)
        if self.degraded:
            headers["x-headrace-degraded"] = "limits"
        return headers


class Meter:
    """`fallback` decides alone while `store` does not answer, over this gateway's share of one in `gateways`.

    Budgets have no shares: a tenant who has one is refused then, or runs uncounted, as its `on_outage` says.
    """

    def __init__(
        self,
        store: LimitStore,
        fallback: LimitStore,
        metrics: Metrics,
        gateways: int = 1,
        limits_of: Callable[[Tenant], Limits] = attrgetter("limits"),
    ) -> None:
        """`limits_of`: what a tenant's reservations are settled by, which may have changed since they were taken."""
        self._store = store
        self._fallback = fallback
        self._metrics = metrics
        self._gateways = gateways
        self._limits_of = limits_of

    async def reserve(self, tenant: Tenant, request_id: str, amount: Amount, *, parts: int = 1) -> Charge:
        """`parts`: how many will be settled, each for itself.

        Raises ApiError 429, 503 for a budget that nobody can look up; nothing is consumed then.
        """
        try:
            try:
                charge = await self._reserve(tenant, request_id, amount)
                if not unlimited(tenant.limits):  # else the store was not asked
                    self._metrics.state_backend("limits", up=True)
            except LimitStoreUnavailable as error:
                logger.warning("limits: %s; deciding by this gateway's own counts", error)
                self._metrics.state_backend("limits", up=False)
                charge = await self._reserve_alone(tenant, request_id, amount)
                if isinstance(error, Unsure):
                    charge.unsure = error.keep()
        except LimitExceeded as refusal:
            self._metrics.limit(refusal.limit, "deny")
            self._tell(tenant, refusal.left)
            raise _refused(refusal) from refusal
        self._metrics.limit("all", "degraded" if charge.degraded else "allow")
        self._tell(tenant, charge.reservation.left)
        charge.parts = parts
        return charge

    async def look(self, tenant: Tenant) -> None:
        """Tell what is gone of a tenant's budgets, which may be another's doing, or a new day's."""
        try:
            left = await self._store.look(tenant.name, tenant.limits)
        except LimitStoreUnavailable:
            self._metrics.state_backend("limits", up=False)
        else:
            self._metrics.state_backend("limits", up=True)
            self._tell(tenant, left)

    def _tell(self, tenant: Tenant, left: Left) -> None:
        for name, budget in left.items():
            if name in BUDGETS:
                spent = budget.limit - budget.remaining
                self._metrics.budget(tenant.name, name.removeprefix("budget_"), spent)

    async def _reserve(self, tenant: Tenant, request_id: str, amount: Amount) -> Charge:
        reservation = await self._store.reserve(tenant.name, tenant.limits, request_id, amount)
        return Charge(tenant=tenant, reservation=reservation, degraded=False)

    async def _reserve_alone(self, tenant: Tenant, request_id: str, amount: Amount) -> Charge:
        if any(budgets(tenant.limits)) and tenant.limits.budget.on_outage == "closed":
            self._metrics.limit("budget", "unknown")
            raise _budget_unknown()
        limits = share_of(tenant.limits, self._gateways)
        reservation = await self._fallback.reserve(tenant.name, limits, request_id, amount)
        return Charge(tenant=tenant, reservation=reservation, degraded=True)

    async def settle(self, charge: Charge, used: Amount | None, *, parts: int = 1) -> None:
        """`used`: None for parts that never ran. Where none has, the call is not counted as a request either.

        A store settles all the same when the caller is cancelled: that is no reason to keep a reservation.
        """
        if used is not None:
            charge.used, charge.ran = charge.used + used, True
        charge.parts -= parts
        if charge.parts or not parts:
            return
        await self._settle(charge, charge.used if charge.ran else None)

    async def _settle(self, charge: Charge, used: Amount | None) -> None:
        limits = self._limits_of(charge.tenant)
        if charge.degraded:
            await self._fallback.settle(charge.reservation, share_of(limits, self._gateways), used)
        held = charge.unsure if charge.degraded else charge.reservation
        if held is None:
            return
        try:
            await self._store.settle(held, limits, used)
        except LimitStoreUnavailable as error:
            logger.warning("limits: not settled, the lease will expire: %s", error)
            self._metrics.state_backend("limits", up=False)


async def look_at_budgets(meter: Meter, tenants: Callable[[], Iterable[Tenant]], every: float = 60.0) -> None:
    """Run as a task: each `every` seconds at those of all tenants."""
    while True:
        for tenant in tenants():
            if any(budgets(tenant.limits)):
                await meter.look(tenant)
        await asyncio.sleep(every)


def _refused(refusal: LimitExceeded) -> ApiError:
    words = LIMIT_WORDS[refusal.limit]
    kind: str = refusal.limit
    if refusal.limit in BUDGETS:
        message, kind, code = (
            f"The tenant's budget of {words} does not suffice for this request.",
            QUOTA,
            QUOTA,
        )
    elif refusal.retry_after is None:
        message = f"The request needs more than the tenant's whole allowance of {words}."
        code = "request_too_large"
    else:
        message = f"The tenant's limit of {words} is reached. Try again in {refusal.retry_after:.1f} s."
        code = "rate_limit_exceeded"
    return ApiError(429, message, type=kind, code=code, headers=ratelimit_headers(refusal))


def _budget_unknown() -> ApiError:
    return ApiError(
        503,
        "What the tenant has spent cannot be looked up now.",
        type="server_error",
        code="budget_unknown",
        headers={"retry-after": "1"},
    )
