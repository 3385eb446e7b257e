"""Limits in Redis: exact across hosts, one script per decision, on the server's clock."""

from collections.abc import Callable, Sequence
from importlib.resources import files

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.account import (
    LEASE,
    Account,
    beyond,
    buckets,
    budgets,
    granted,
    left_of,
    obstacles,
    refused,
    units_of,
)
from gateway.config import Limits
from gateway.limits import NOTHING, Amount, Left, LimitStoreUnavailable, Reservation
from sessions.connection import twice

SCRIPT = files("gateway").joinpath("limits.lua").read_text(encoding="utf-8")


class RedisLimits:
    """A `LimitStore`. A tenant's keys share one hash tag, so that a cluster holds them on one node."""

    def __init__(self, client: Redis, clock: Callable[[], float] | None = None) -> None:
        """`client` is closed with the store. `clock`: seconds; None for the server's own."""
        self._client = client
        self._clock = clock
        # Loads itself again after the server has lost it.
        self._script = client.register_script(SCRIPT)

    async def reserve(self, tenant: str, limits: Limits, lease: str, amount: Amount) -> Reservation:
        asked = (*units_of(1, amount), amount.money)
        done, running, now, *state = await self._run("reserve", tenant, limits, lease, asked)
        account = _account(now, state)
        if done:
            return granted(account.taken(limits, amount), limits, tenant, lease, amount)
        standing = obstacles(account, limits, amount, running)
        if not standing:
            raise LimitStoreUnavailable(f"Redis: lease {lease} was given up before it was taken")
        raise refused(account, limits, standing)

    async def settle(self, reservation: Reservation, limits: Limits, used: Amount | None) -> None:
        """A lease that is not there is marked as given up, since its reservation may still be on its way."""
        units, money = beyond(reservation.amount, used)
        more = (*units, money, *reservation.periods)
        await self._run("settle", reservation.tenant, limits, reservation.lease, more)

    async def look(self, tenant: str, limits: Limits) -> Left:
        _, _, now, *state = await self._run("look", tenant, limits, "", (*units_of(0, NOTHING), 0))
        return left_of(_account(now, state), limits)

    async def close(self) -> None:
        await self._client.aclose()

    async def _run(
        self, op: str, tenant: str, limits: Limits, lease: str, amounts: Sequence[int]
    ) -> list[int]:
        now = "" if self._clock is None else round(self._clock() * 1000)
        prefix = f"headrace:{{{tenant}}}"
        keys = [f"{prefix}:account", f"{prefix}:leases", f"{prefix}:given-up:{lease}"]
        rates = [(0, 0) if bucket is None else (bucket.rate, bucket.burst) for bucket in buckets(limits)]
        numbers = (
            LEASE, limits.parallel or 0, *(budget or 0 for budget in budgets(limits)),
            *(rate for rate, _ in rates), *(burst for _, burst in rates), *amounts,
        )  # fmt: skip
        try:
            arguments = [op, lease, now, " ".join(map(str, numbers))]
            reply = await twice(lambda: self._script(keys=keys, args=arguments))
        except (RedisError, OSError) as error:
            raise LimitStoreUnavailable(f"Redis: {error or type(error).__name__}") from error
        return [int(number) for number in reply]


def _account(now: int, state: Sequence[int]) -> Account:
    """Of what the script has answered."""
    return Account(tuple(state[:4]), now, tuple(state[4:6]), (state[6], state[7]), now)
