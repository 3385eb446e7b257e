"""Limits in Redis: exact across hosts, one script per decision, on the server's clock."""

from collections.abc import Callable
from importlib.resources import files

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.account import LEASE, Account, granted, obstacles, refused
from gateway.config import Limits
from gateway.limits import LimitStoreUnavailable, Reservation

SCRIPT = files("gateway").joinpath("limits.lua").read_text(encoding="utf-8")


class RedisLimits:
    """A `LimitStore`. A tenant's keys share one hash tag, so that a cluster holds them on one node."""

    def __init__(self, client: Redis, clock: Callable[[], float] | None = None) -> None:
        """`client` is closed with the store. `clock`: seconds; None for the server's own."""
        self._client = client
        self._clock = clock
        # Loads itself again after the server has lost it.
        self._script = client.register_script(SCRIPT)

    async def reserve(self, tenant: str, limits: Limits, lease: str, tokens: int) -> Reservation:
        done, requests, owed, running, now = await self._run("reserve", tenant, limits, lease, tokens)
        account = Account(requests, owed, now)
        if done:
            return granted(account.taken(limits, tokens), limits, tenant, lease, tokens)
        standing = obstacles(account, limits, tokens, running)
        if not standing:
            raise LimitStoreUnavailable(f"Redis: lease {lease} was given up before it was taken")
        raise refused(account, limits, standing)

    async def settle(self, reservation: Reservation, limits: Limits, used: int) -> None:
        """A lease that is not there is marked as given up, since its reservation may still be on its way."""
        more = used - reservation.tokens
        await self._run("settle", reservation.tenant, limits, reservation.lease, more)

    async def close(self) -> None:
        await self._client.aclose()

    async def _run(self, op: str, tenant: str, limits: Limits, lease: str, tokens: int) -> list[int]:
        now = "" if self._clock is None else round(self._clock() * 1000)
        prefix = f"headrace:{{{tenant}}}"
        keys = [f"{prefix}:account", f"{prefix}:leases", f"{prefix}:given-up:{lease}"]
        arguments: list[str | int] = [
            op, lease, LEASE, now,
            limits.requests_per_minute or 0, limits.tokens_per_minute or 0, limits.parallel or 0, tokens,
        ]  # fmt: skip
        try:
            reply = await self._script(keys=keys, args=arguments)
        except (RedisError, OSError) as error:
            raise LimitStoreUnavailable(f"Redis: {error or type(error).__name__}") from error
        return [int(number) for number in reply]
