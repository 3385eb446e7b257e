"""A prompt in the tokens of each tier that may take it: encoded once per tokenizer family, then looked up."""

from collections.abc import Iterable, Mapping

import msgspec

from backends.prompt import Prompt
from backends.tokenizer import TemplateError
from gateway.errors import ApiError
from gateway.tiers import Replica, Tier
from prefixcache.affinity import Affinity, block_keys

CHARACTERS_PER_TOKEN = 3  # of unknown tokenizers, on the cautious side for English and code
TOKENS_PER_MESSAGE = 8  # what a chat template adds


class Encoded(msgspec.Struct, frozen=True):
    """`ids` by tokenizer family; `estimate` stands in for replicas whose tokenizer is unknown."""

    prompt: Prompt
    ids: Mapping[str, list[int]]
    estimate: int
    cached: dict[str, int] = {}  # prompt tokens held, by replica name

    def of(self, replica: Replica) -> list[int] | None:
        """The prompt in this replica's tokens, None where its tokenizer is unknown."""
        tokenizer = replica.backend.tokenizer
        return None if tokenizer is None else self.ids[tokenizer.family]

    def tokens(self, tier: Tier) -> int:
        """The length of the prompt on this tier (the longest, if its replicas disagree)."""
        return max(self.length(replica) for replica in tier.replicas)

    def length(self, replica: Replica) -> int:
        ids = self.of(replica)
        return self.estimate if ids is None else len(ids)

    def ends(self, replica: Replica) -> tuple[int, ...]:
        """The tokens besides the model's own that end the answer: around a gap, those that end its middle."""
        tokenizer = replica.backend.tokenizer
        if self.prompt.suffix is None or tokenizer is None or tokenizer.infill is None:
            return ()
        return tokenizer.infill.ends

    def words(self, replica: Replica) -> str:
        """What the person asks now: the last user message, or the text to continue. `replica` can spell out ids."""
        if self.prompt.text is not None:
            return self.prompt.text
        if self.prompt.ids is not None:
            return self.spelled(replica)
        users = [message.content for message in self.prompt.messages if message.role == "user"]
        return users[-1] if users else self.prompt.messages[-1].content

    def spelled(self, replica: Replica) -> str:
        """A prompt of ids as text; empty for others, and where the tokenizer is unknown."""
        tokenizer = replica.backend.tokenizer
        if self.prompt.ids is None or tokenizer is None:
            return ""
        return tokenizer.detokenizer().finish(list(self.prompt.ids), trim=0)

    def look_up(self, tiers: Iterable[Tier], affinity: Affinity, salt: bytes) -> None:
        """Fill `cached` from what the engines have reported."""
        keys: dict[tuple[str, int, int], list[bytes]] = {}
        for replica in (replica for tier in tiers for replica in tier.replicas):
            tokenizer, size = replica.backend.tokenizer, replica.block_size
            if tokenizer is None or size is None:
                continue
            room = replica.backend.context_length
            family = (tokenizer.family, size, room)
            if family not in keys:
                # Without the last token, which an engine computes in any case, and what does not fit into any.
                ids = self.ids[tokenizer.family]
                keys[family] = block_keys(salt, ids[: min(len(ids) - 1, room)], size)
            self.cached[replica.name] = affinity.lookup(keys[family]).get(replica.name, 0) * size


async def encode(prompt: Prompt, tiers: Iterable[Tier]) -> Encoded:
    """Raises ApiError where a chat template refuses the conversation."""
    ids: dict[str, list[int]] = {}
    for replica in (replica for tier in tiers for replica in tier.replicas):
        tokenizer = replica.backend.tokenizer
        if tokenizer is None or tokenizer.family in ids:
            continue
        try:
            ids[tokenizer.family] = await tokenizer.encode(prompt)
        except TemplateError as error:
            raise ApiError(400, f"messages: {error}", code="invalid_messages", param="messages") from error
    return Encoded(prompt, ids, estimate(prompt))


def estimate(prompt: Prompt) -> int:
    """Tokens of a prompt by an unknown tokenizer, rather too many than too few."""
    if prompt.ids is not None:
        return len(prompt.ids)
    if prompt.text is not None:
        return len(prompt.text) // CHARACTERS_PER_TOKEN + 1
    return sum(length // CHARACTERS_PER_TOKEN + TOKENS_PER_MESSAGE for length in prompt.lengths())
