"""Tiers and their replicas, and which replica of a tier takes a request."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from backends.backend import Backend, Rejected, Sampling
from backends.prompt import Prompt
from gateway.config import Price

LOAD_GATE = 4  # generations by which a replica may be busier than the idlest and still win by its cache


class Replica(msgspec.Struct, frozen=True):
    """One backend of a tier. `block_size`: tokens per block of its prefix cache, None where that is unknown.

    `room`: generations that it runs side by side, None where that is unknown.
    """

    backend: Backend
    model: str
    block_size: int | None = None
    room: int | None = None

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def load(self) -> float:
        """Generations that this gateway has running there, as a share of its room."""
        return 0.0 if self.room is None else self.backend.in_flight / self.room


@dataclass(slots=True, eq=False)
class Tier:
    """Replicas of models of one size. All of them answer alike, so any may take any request.

    `price` alone may change while requests run.
    """

    name: str
    replicas: tuple[Replica, ...]
    price: Price
    # What every replica can hold, so that failing over never goes too far.
    context_length: int = field(init=False)

    def __post_init__(self) -> None:
        self.context_length = min(replica.backend.context_length for replica in self.replicas)

    @property
    def available(self) -> bool:
        return any(replica.backend.available for replica in self.replicas)

    @property
    def recovering(self) -> bool:
        """Nobody answers, but one of them is expected back."""
        return not self.available and any(replica.backend.recovering for replica in self.replicas)

    @property
    def takes_tools(self) -> bool:
        return all(replica.backend.takes_tools for replica in self.replicas)

    def refusal(self, prompt: Prompt, sampling: Sampling) -> Rejected | None:
        """Of the first replica that does not honour something of the request, as any of them may take it."""
        refusals = (replica.backend.refusal(prompt, sampling) for replica in self.replicas)
        return next((refused for refused in refusals if refused is not None), None)

    def pick(self, cached: Mapping[str, int], tried: Collection[str] = ()) -> Replica | None:
        """The replica that holds most of the prompt, unless it is much busier than the idlest one.

        `cached`: prompt tokens by replica name. None when every replica was tried or does not answer.
        """
        able = [r for r in self.replicas if r.name not in tried and r.backend.available]
        if len(able) < 2:
            return able[0] if able else None
        least = min(replica.backend.in_flight for replica in able)
        calm = [replica for replica in able if replica.backend.in_flight <= least + LOAD_GATE]
        return max(calm, key=lambda replica: (cached.get(replica.name, 0), -replica.backend.in_flight))
