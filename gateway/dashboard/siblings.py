"""The other processes of a gateway, as one that serves requests sees them."""

from collections.abc import Sequence
from typing import Protocol

from gateway.dashboard.record import Record
from gateway.dashboard.share import Share


class Siblings(Protocol):
    """Those that do not answer in time are left out."""

    async def shares(self) -> Sequence[Share]:
        """What each of them knows."""

    async def find(self, request_id: str) -> Record | None:
        """A request that one of them has served."""

    async def refresh(self) -> None:
        """See to it that they have told the shared metrics how they are now."""


class Alone:
    """There is one process."""

    async def shares(self) -> Sequence[Share]:
        return ()

    async def find(self, request_id: str) -> Record | None:
        return None

    async def refresh(self) -> None:
        """There is nobody to tell."""


ALONE = Alone()
