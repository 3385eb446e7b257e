"""What of a prompt is looked up in the caches."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from backends.prompt import Prompt
from gateway.prompts import Encoded, encode
from prefixcache.affinity import Affinity, block_keys

SALT = b"salt"


class Asked(Affinity):
    """Remembers how many keys it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def lookup(self, keys: Sequence[bytes]) -> dict[str, int]:
        self.counts.append(len(keys))
        return super().lookup(keys)


@pytest.mark.parametrize(("length", "keys", "cached"), [(5, 1, 4), (8, 1, 4), (9, 2, 8), (1000, 10, 40)])
async def test_no_more_is_looked_up_than_fits(
    backend: Callable[..., Any], tier_of: Callable[..., Any], length: int, keys: int, cached: int
) -> None:
    """The last token never counts, as an engine computes it in any case, nor what no context has room for."""
    tier = tier_of("7b", backend("7b/0", context_length=40), block_size=4)
    prompt = Prompt(messages=(), text="x" * length)
    encoded: Encoded = await encode(prompt, [tier])
    affinity = Asked()
    affinity.snapshot("7b/0", block_keys(SALT, [ord("x")] * 1000, 4))
    encoded.look_up([tier], affinity, SALT)
    assert affinity.counts == [keys]
    assert encoded.cached == {"7b/0": cached}
