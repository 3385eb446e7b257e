"""How long a tenant's sessions and documents are kept after their last use."""

from collections.abc import Callable

Retention = Callable[[str], float]
"""Seconds by tenant. It is asked when something is stored, so a change holds from the next use on."""


def always(seconds: float) -> Retention:
    """The same for every tenant."""
    return lambda tenant: seconds


def milliseconds(retention: Retention, tenant: str) -> int:
    """As Redis wants it, at least 1."""
    return max(1, round(retention(tenant) * 1000))
