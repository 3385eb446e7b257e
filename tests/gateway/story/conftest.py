"""A backend that follows a script, for tests of what the gateway makes of it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from backends.backend import BackendError, Delta, Generation, Rejected, Sampling, Usage
from backends.prompt import Prompt
from backends.tokenizer import Tokenizer
from gateway.config import Price
from gateway.tiers import Replica, Tier
from tests.gateway.story.in_the_hand import Gateway
from tests.gateway.story.judged import Rig

Step = Delta | BackendError


class WordTokenizer(Tokenizer):
    """One token per character; enough to count by."""

    def __init__(self) -> None:
        pass

    @property
    def family(self) -> str:
        return "words"

    def encode_now(self, prompt: Prompt) -> list[int]:
        text = prompt.text if prompt.text is not None else "".join(m.content for m in prompt.messages)
        return [ord(character) for character in text]

    async def encode(self, prompt: Prompt) -> list[int]:
        return self.encode_now(prompt)


@dataclass
class ScriptedBackend:
    """Each generation plays the next script, the last one for ever; `closed` counts ended ones."""

    name: str
    scripts: list[Sequence[Step]]
    context_length: int = 1000
    available: bool = True
    takes_tools: bool = True
    never: Rejected | None = None  # what it refuses whatever is asked
    recovering: bool = False
    tripped: bool = False
    tokenizer: Tokenizer | None = field(default_factory=WordTokenizer)
    in_flight: int = 0
    opened: int = 0
    closed: int = 0
    seen: list[Generation] = field(default_factory=list)
    warmed: list[Generation] = field(default_factory=list)
    warming: float = 0.0  # seconds

    def refusal(self, prompt: Prompt, sampling: Sampling) -> Rejected | None:
        return self.never

    async def stream(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        script = self.scripts[min(self.opened, len(self.scripts) - 1)]
        self.opened += 1
        self.in_flight += 1
        self.seen.append(generation)
        try:
            for step in script:
                if isinstance(step, BackendError):
                    raise step
                yield step
        finally:
            self.in_flight -= 1
            self.closed += 1

    async def warm(self, generation: Generation) -> bool:
        self.warmed.append(generation)
        await asyncio.sleep(self.warming)
        return True

    async def start(self) -> None:
        self.available = True

    async def close(self) -> None:
        self.available = False


def answer(*pieces: str, prompt_tokens: int = 5, cached: int = 0) -> list[Step]:
    """A whole answer, one token per piece."""
    usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=len(pieces), cached_tokens=cached)
    body: list[Step] = [Delta(text=piece, tokens=1) for piece in pieces[:-1]]
    return [*body, Delta(text=pieces[-1], tokens=1, finish="stop", usage=usage)]


MakeBackend = Callable[..., ScriptedBackend]


@pytest.fixture
def backend() -> MakeBackend:
    def make(name: str, *scripts: Sequence[Step], **options: object) -> ScriptedBackend:
        return ScriptedBackend(name, list(scripts) or [answer("Hello", " world")], **options)  # type: ignore[arg-type]

    return make


@pytest.fixture
def whole_answer() -> Callable[..., list[Step]]:
    return answer


@pytest.fixture
def tier_of() -> Callable[..., Tier]:
    def make(
        name: str, *backends: ScriptedBackend, block_size: int | None = None, price: Price | None = None
    ) -> Tier:
        replicas = tuple(Replica(b, f"model-{name}", block_size) for b in backends)
        return Tier(name, replicas, price or Price())

    return make


@pytest.fixture
async def gateway(
    tmp_path: Path, backend: MakeBackend, tier_of: Callable[..., Tier]
) -> AsyncIterator[Gateway]:
    """Two tiers, one replica each, that say "Hello world"."""
    made = Gateway(tmp_path, [tier_of("7b", backend("7b/0")), tier_of("13b", backend("13b/0"))])
    yield made
    await made.sessions.close()


@pytest.fixture
def rig(confident: Any, backend: MakeBackend, tier_of: Callable[..., Tier]) -> Rig:
    return Rig(confident, backend, tier_of)
