"""Who answers in an open tool loop: until a person speaks again, the tier that made the calls.

Where the gateway keeps the conversation, its turns tell, whichever process reads them. A client that sends the whole
conversation each time is known again by what was said up to the last human turn; that is remembered in this process
only, so that another worker classifies the same human turn again, mostly with the same result.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from gateway.request import Request
from sessions import Turn

HUMAN = frozenset(["user", "system", "developer"])
REMEMBERED = 4096  # conversations


def last_human(turns: Sequence[Turn]) -> int:
    """How many turns there are up to and with the last of a person, 0 where there is none."""
    return max((n for n, turn in enumerate(turns, start=1) if turn.role == "user"), default=0)


def in_loop(turns: Sequence[Turn]) -> bool:
    """Whether nobody but models and tools has spoken since the last answer began."""
    return bool(turns) and turns[-1].role not in HUMAN


def told(turns: Sequence[Turn]) -> str | None:
    """The tier of the last answer since a person spoke, where one of these turns names it."""
    since = turns[last_human(turns) :]
    return next((turn.tier for turn in reversed(since) if turn.tier is not None), None)


class Loops:
    """The tiers that answered lately, by tenant and conversation."""

    def __init__(self) -> None:
        self._tiers: OrderedDict[bytes, str] = OrderedDict()

    def tier(self, request: Request, turns: Sequence[Turn]) -> str | None:
        """Who must go on with the conversation; None where a person has spoken, or nobody knows."""
        if not in_loop(turns):
            return None
        return told(turns) or request.answered_by or self._tiers.get(_key(request, turns))

    def answered(self, request: Request, turns: Sequence[Turn], tier: str) -> None:
        """`tier` answers what `turns` ask."""
        if not turns:
            return
        key = _key(request, turns)
        self._tiers[key] = tier
        self._tiers.move_to_end(key)
        if len(self._tiers) > REMEMBERED:
            self._tiers.popitem(last=False)


def _key(request: Request, turns: Sequence[Turn]) -> bytes:
    said = [(turn.role, turn.content) for turn in turns[: last_human(turns)]]
    return hashlib.sha256(msgspec.json.encode([request.tenant.name, said])).digest()[:16]
