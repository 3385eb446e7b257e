"""What a remote server is asked: a generation as the JSON body of its OpenAI-compatible endpoint.

Servers differ in what they know beyond OpenAI's fields; each kind is a row of `KINDS`. What a kind cannot honour is
refused by name, never dropped. A null is never sent: some servers refuse it where they accept an absent field.
"""

from dataclasses import dataclass

import msgspec

from backends.backend import Generation, Rejected, Sampling

MAX_SEED = 2**63 - 1  # seeds are signed 64-bit numbers there; ours loses its highest bit


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How a kind of server differs from the others."""

    name: str
    no_top_k: int | None = None  # what turns top-k off, where the server knows it
    full_top_p: bool = True  # may top_p = 1 be said?
    ignore_eos: bool = False
    stop_token_ids: bool = False
    cache_salt: bool = False
    repeats_stop: bool = False  # is the stop string part of the text?


# From the request types of vLLM 0.33, SGLang 0.5, LMDeploy 0.9 and TGI 3 (router/src/{lib,validation}.rs). Where top_k
# is known it is always sent: LMDeploy's default is 40, and vLLM's comes from the model's generation_config.json.
KINDS = {
    kind.name: kind
    for kind in (
        Kind(name="vllm", no_top_k=-1, ignore_eos=True, stop_token_ids=True, cache_salt=True),
        Kind(name="sglang", no_top_k=-1, ignore_eos=True, stop_token_ids=True, cache_salt=True),
        Kind(name="lmdeploy", no_top_k=0, ignore_eos=True),
        Kind(name="tgi", full_top_p=False, repeats_stop=True),
        Kind(name="openai"),
    )
}


def compose(kind: Kind, model: str, generation: Generation) -> tuple[str, dict[str, object]]:
    """Path below the base URL, and body. Raises Rejected, naming a field that this kind of server cannot honour."""
    sampling = generation.sampling
    _check(kind, sampling)
    body: dict[str, object] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed & MAX_SEED,
        **_options(kind, sampling),
    }
    if kind.cache_salt and generation.salt:
        body["cache_salt"] = generation.salt.hex()
    if generation.prompt.text is not None:
        return "/completions", body | {"prompt": generation.prompt.text}
    messages = [msgspec.to_builtins(message) for message in generation.prompt.messages]
    return "/chat/completions", body | {"messages": messages}


def _options(kind: Kind, sampling: Sampling) -> dict[str, object]:
    options: dict[str, object] = {}
    if kind.full_top_p or sampling.top_p < 1:
        options["top_p"] = sampling.top_p
    if kind.no_top_k is not None:
        options["top_k"] = sampling.top_k or kind.no_top_k
    if sampling.stop:
        options["stop"] = list(sampling.stop)
    if sampling.stop_token_ids:
        options["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.ignore_eos:
        options["ignore_eos"] = True
    return options


def _check(kind: Kind, sampling: Sampling) -> None:
    asked_and_able = {
        "top_k": (sampling.top_k > 0, kind.no_top_k is not None),
        "stop_token_ids": (bool(sampling.stop_token_ids), kind.stop_token_ids),
        "ignore_eos": (sampling.ignore_eos, kind.ignore_eos),
    }
    for field, (asked, able) in asked_and_able.items():
        if asked and not able:
            raise Rejected(
                f"{field}: this model runs on a server that does not support it ({kind.name})",
                "unsupported_parameter",
            )
