"""What tokens cost, and money in whole billionths, so that sums are exact in every store.

A request is charged what it used at the price of the tier that answered, rounded up to a billionth. Before it runs
nobody knows that, so it reserves its worst case: on the dearest tier that may take it, nothing of its prompt cached,
as many tokens as it may make.
"""

import math

from backends.backend import Usage
from gateway.config import Price

PER = 1_000_000  # prices are per million tokens
NANO = 1_000_000_000  # parts of one unit of money


def cost(price: Price, usage: Usage) -> float:
    """In the money of the price list. Cached tokens have a price of their own, in place of that of the prompt."""
    computed = usage.prompt_tokens - usage.cached_tokens
    return (
        computed * price.input + usage.cached_tokens * price.cached + usage.completion_tokens * price.output
    ) / PER


def most(price: Price, prompt_tokens: int, answer_tokens: int) -> float:
    """As `cost`, for a prompt whose share in the cache is not known yet."""
    return (prompt_tokens * max(price.input, price.cached) + answer_tokens * price.output) / PER


def billionths(money: float) -> int:
    """Rounded up; what a float is off by counts as nothing."""
    return math.ceil(round(money * NANO, 3))


def written(money: float) -> str:
    """For people and headers: as many decimals as it needs."""
    return f"{money:.9f}".rstrip("0").rstrip(".")
