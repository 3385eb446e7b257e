"""A recalled history cut to a context: the system prompt and the latest turns stay, the oldest go."""

import asyncio
from collections.abc import Sequence

from msgspec import structs

from backends.prompt import Prompt
from gateway.prompts import estimate
from gateway.recall import Recalled
from gateway.tiers import Tier
from gateway.turns import said_in
from sessions import Turn
from sessions.window import WindowError, fit


async def within_context(
    recalled: Recalled, asked: Prompt, tiers: Sequence[Tier], max_tokens: int | None
) -> Recalled:
    """The turns that fit the longest context among `tiers`, or all of them where even the latest do not fit.

    `asked`: what the client sent; its tools need room too. What is dropped is dropped from the prompt only; the
    session keeps it.
    """
    tier = max(tiers, key=lambda tier: tier.context_length)
    tokenizer = tier.replicas[0].backend.tokenizer

    def count(turns: Sequence[Turn]) -> int:
        prompt = said_in(asked, turns)
        return estimate(prompt) if tokenizer is None else len(tokenizer.encode_now(prompt))

    try:
        turns = await asyncio.to_thread(fit, recalled.turns, tier.context_length - (max_tokens or 1), count)
    except WindowError:
        return recalled
    return structs.replace(recalled, turns=tuple(turns))
