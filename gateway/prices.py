"""What tokens cost."""

from backends.backend import Usage
from gateway.config import Price

PER = 1_000_000  # prices are per million tokens


def cost(price: Price, usage: Usage) -> float:
    """In the money of the price list. Cached tokens have a price of their own, in place of that of the prompt."""
    computed = usage.prompt_tokens - usage.cached_tokens
    return (
        computed * price.input + usage.cached_tokens * price.cached + usage.completion_tokens * price.output
    ) / PER
