"""Which tiers can be asked something at all, whatever it costs and whoever is busy."""

from collections.abc import Sequence
from typing import NoReturn

from backends.backend import Backend, Sampling
from backends.prompt import Prompt
from gateway.errors import ApiError
from gateway.tiers import Tier


def able(prompt: Prompt, field: str, tiers: Sequence[Tier]) -> Sequence[Tier]:
    """The tiers that can be asked this at all. Raises ApiError 400 where none can, or where ids mean nothing.

    `field`: the client's name for the prompt.
    """
    if prompt.ids is not None:
        _check_ids(prompt.ids, field, tiers)
    if prompt.suffix is None:
        return tiers
    fitting = [tier for tier in tiers if all(_fills_gaps(replica.backend) for replica in tier.replicas)]
    return fitting or _refuse(tiers, "suffix", "fill gaps")


def that_take_tools(tiers: Sequence[Tier]) -> Sequence[Tier]:
    """Those whose models know what tools are. Raises ApiError 400 where there is none."""
    fitting = [tier for tier in tiers if tier.takes_tools]
    return fitting or _refuse(tiers, "tools", "call tools")


def that_honour(prompt: Prompt, sampling: Sampling, tiers: Sequence[Tier]) -> Sequence[Tier]:
    """Those whose servers honour all of it: an answer must not hang on where the prompt would go.

    Raises Rejected where there is none, as the dearest says it.
    """
    refusals = [(tier, tier.refusal(prompt, sampling)) for tier in tiers]
    fitting = [tier for tier, refused in refusals if refused is None]
    if not fitting and (refused := refusals[-1][1]) is not None:
        raise refused
    return fitting


def _refuse(tiers: Sequence[Tier], field: str, what: str) -> NoReturn:
    names = ", ".join(tier.name for tier in tiers)
    reason = f"{field}: no model of {names} is known to {what}"
    raise ApiError(400, reason, code="unsupported_parameter", param=field)


def _fills_gaps(backend: Backend) -> bool:
    return backend.tokenizer is not None and backend.tokenizer.infill is not None


def _check_ids(ids: Sequence[int], field: str, tiers: Sequence[Tier]) -> None:
    """Ids have a meaning in one vocabulary only. What another server's unknown one holds, that server has to say."""
    replicas = [replica for tier in tiers for replica in tier.replicas]
    tokenizers = {replica.backend.tokenizer for replica in replicas}
    families = {t.family if (t := r.backend.tokenizer) is not None else r.model for r in replicas}
    if len(families) > 1:
        names = " and ".join(tier.name for tier in tiers)
        reason = f"token ids have no one meaning for {names}, whose tokenizers differ"
        hint = "; name one tier as the model" if len(tiers) > 1 else ""
        raise ApiError(400, f"{field}: {reason}{hint}", code="invalid_value", param=field)
    for size in (len(tokenizer.vocabulary()) for tokenizer in tokenizers if tokenizer is not None):
        if max(ids) >= size:
            at = next(at for at, id in enumerate(ids) if id >= size)
            param = f"{field}[{at}]"
            raise ApiError(
                400,
                f"{param}: {ids[at]} is outside the vocabulary of {size}",
                code="invalid_value",
                param=param,
            )
