"""One of several processes that take from the same limits: prints how many of its requests got in."""

import asyncio
import sys
from pathlib import Path

import msgspec

from gateway.config import Limits
from gateway.limits import Amount, LimitExceeded, LimitStore
from gateway.limits_guard import GuardedLimits
from gateway.limits_redis import RedisLimits
from gateway.limits_sqlite import SqliteLimits
from sessions.connection import connect


def a_standing_clock() -> float:
    """Nothing leaks away meanwhile, so that the sum is exact."""
    return 1_000_000.0


async def take(store: LimitStore, allowed: Limits, process: str, tries: int) -> int:
    got_in = 0
    for number in range(tries):
        try:
            await store.reserve("acme", allowed, f"{process}-{number}", Amount(tokens=10, money=10))
        except LimitExceeded:
            continue
        got_in += 1
    await store.close()
    return got_in


def main(where: str, process: str, tries: str, limits: str) -> None:
    if where.startswith("redis:"):
        store = GuardedLimits(RedisLimits(connect(where, 10.0), a_standing_clock))
    else:
        store = GuardedLimits(SqliteLimits(Path(where), a_standing_clock, a_standing_clock))
    allowed = msgspec.json.decode(limits, type=Limits)
    sys.stdin.readline()  # all begin together
    print(asyncio.run(take(store, allowed, process, int(tries))))


if __name__ == "__main__":
    main(*sys.argv[1:])
