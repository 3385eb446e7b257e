"""The generic cell rate algorithm in whole numbers: exact, and the same in Python, SQLite and Redis.

Source: ITU-T I.371, annex A, which gives two equivalent forms. This is the continuous-state leaky bucket; the other
one, virtual scheduling, keeps a theoretical arrival time instead, TAT = now + debt / rate.

A bucket's state is a debt in credits, a minute's worth of milliseconds to the unit: taking n units adds n * 60,000
credits, and every millisecond `rate` credits leak away. All of it stays an integer, so that a burst admits exactly
`burst` units; it also stays below 2**53, the last whole number Lua can tell from its neighbours, since the
configuration bounds both by 1e9.
"""

import msgspec

MINUTE = 60_000  # milliseconds in a minute, and credits in a unit


class Bucket(msgspec.Struct, frozen=True):
    """`rate`: units that come back per minute; `burst`: units that fit at once."""

    rate: int
    burst: int

    def leaked(self, debt: int, elapsed: int) -> int:
        """The debt after `elapsed` milliseconds. A clock set back (elapsed < 0) leaves it as it is."""
        return max(0, debt - self.rate * max(0, elapsed))

    def wait(self, debt: int, units: int) -> int | None:
        """Milliseconds until `units` fit: 0 if they do now, None if they never will."""
        if units > self.burst:
            return None
        return max(0, _ceil_divide(debt + (units - self.burst) * MINUTE, self.rate))

    def remaining(self, debt: int) -> int:
        """Whole units that fit now."""
        return max(0, (self.burst * MINUTE - debt) // MINUTE)

    def reset(self, debt: int) -> int:
        """Milliseconds until all of `burst` fits again."""
        return _ceil_divide(debt, self.rate)


def moved(debt: int, units: int) -> int:
    """The debt after taking `units`, or giving back -`units`. What leaked away meanwhile cannot be given back."""
    return max(0, debt + units * MINUTE)


def _ceil_divide(number: int, by: int) -> int:
    return -(-number // by)
