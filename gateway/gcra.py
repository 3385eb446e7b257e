"""The generic cell rate algorithm in whole numbers: exact, and the same in Python, SQLite and Redis.

Source: ITU-T I.371, annex A, which gives two equivalent forms. This is the continuous-state leaky bucket; the other
one, virtual scheduling, keeps a theoretical arrival time instead, TAT = now + debt / limit.

A bucket holds one minute's allowance. Its state is a debt in credits, a minute's worth of milliseconds to the unit:
taking n units adds n * 60,000 credits, and every millisecond `limit` credits leak away. All of it stays an integer,
so that a burst admits exactly `limit` units; it also stays below 2**53, the last whole number Lua can tell from its
neighbours, since the configuration bounds a limit by 1e9.
"""

MINUTE = 60_000  # milliseconds in a minute, and credits in a unit


def leaked(debt: int, limit: int, elapsed: int) -> int:
    """The debt after `elapsed` milliseconds. A clock set back (elapsed < 0) leaves it as it is."""
    return max(0, debt - limit * max(0, elapsed))


def moved(debt: int, units: int) -> int:
    """The debt after taking `units`, or giving back -`units`. What leaked away meanwhile cannot be given back."""
    return max(0, debt + units * MINUTE)


def wait(debt: int, limit: int, units: int) -> int | None:
    """Milliseconds until `units` fit: 0 if they do now, None if they never will."""
    if units > limit:
        return None
    return max(0, _ceil_divide(debt + units * MINUTE - limit * MINUTE, limit))


def remaining(debt: int, limit: int) -> int:
    """Whole units that fit now."""
    return max(0, (limit * MINUTE - debt) // MINUTE)


def reset(debt: int, limit: int) -> int:
    """Milliseconds until the whole allowance is there again."""
    return _ceil_divide(debt, limit)


def _ceil_divide(number: int, by: int) -> int:
    return -(-number // by)
