"""What a remote server is asked: a generation as the JSON body of its OpenAI-compatible endpoint.

Servers differ in what they know beyond OpenAI's fields; each kind is a row of `KINDS`. What a kind cannot honour is
refused by name, never dropped. A null is never sent: some servers refuse it where they accept an absent field.
"""

from dataclasses import dataclass

import msgspec

from backends import remote_grammar, remote_signals
from backends.backend import Generation, Rejected, Sampling
from backends.prompt import ChatMessage, Prompt, Tool, ToolCall

MAX_SEED = 2**63 - 1  # seeds are signed 64-bit numbers there; ours loses its highest bit


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How a kind of server differs from the others."""

    name: str
    no_top_k: int | None = None  # what turns top-k off, where the server knows it
    full_top_p: bool = True  # may top_p = 1 be said?
    honours: frozenset[str]  # fields of Sampling that the server does not ignore
    cache_salt: bool = False
    form: remote_grammar.Form = remote_grammar.nothing  # how a grammar is asked for
    repeats_stop: bool = False  # is the stop string part of the text?
    ids: bool = False  # may a prompt be token ids?
    tools: bool = True
    template_options: bool = False  # are they passed on?


OPENAI = frozenset({"presence_penalty", "frequency_penalty", "logit_bias"})
VLLM = OPENAI | {"ignore_eos", "stop_token_ids", "min_p", "repetition_penalty", "min_tokens"}
DEFAULTS = {"repetition_penalty", "min_p"}  # which models bring along, too
OFF = {field: getattr(Sampling(max_tokens=0), field) for field in VLLM}

# From the request types of vLLM 0.33, SGLang 0.5, LMDeploy 0.9 and TGI 3 (router/src/{lib,validation}.rs). Where top_k
# and DEFAULTS are known they are always sent: LMDeploy's top_k is 40, and vLLM takes what is absent from the model's
# generation_config.json.
# LMDeploy takes OpenAI's penalties and ignores them; TGI makes another penalty of presence_penalty. TGI takes tools,
# but garbles the names of calls that it streams and knows no results.
KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name="vllm",
            no_top_k=-1,
            honours=VLLM,
            cache_salt=True,
            ids=True,
            form=remote_grammar.structured_outputs,
            template_options=True,
        ),
        Kind(
            name="sglang",
            no_top_k=-1,
            honours=VLLM,
            cache_salt=True,
            ids=True,
            form=remote_grammar.response_format_or_regex,
            template_options=True,
        ),
        Kind(
            name="lmdeploy",
            no_top_k=0,
            honours=frozenset({"ignore_eos", "min_p", "repetition_penalty"}),
            form=remote_grammar.regex_schema,
        ),
        Kind(
            name="tgi",
            full_top_p=False,
            honours=frozenset({"frequency_penalty"}),
            repeats_stop=True,
            form=remote_grammar.typed_value,
            tools=False,
        ),
        Kind(name="openai", honours=OPENAI, ids=True, form=remote_grammar.response_format),
    )
}


def compose(kind: Kind, model: str, generation: Generation) -> tuple[str, dict[str, object]]:
    """Path below the base URL, and body. Raises Rejected, naming a field that this kind of server cannot honour."""
    sampling = generation.sampling
    _check(kind, generation)
    body: dict[str, object] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed & MAX_SEED,
        **_options(kind, sampling),
        **(_form(kind, generation.prompt, sampling) or {}),
    }
    if sampling.signals:
        body |= remote_signals.asked(conversation=generation.prompt.is_conversation)
    if kind.cache_salt and generation.salt:
        body["cache_salt"] = generation.salt.hex()
    if not generation.prompt.is_conversation:
        return "/completions", body | {"prompt": _told(generation)}
    if options := generation.prompt.options:
        body["chat_template_kwargs"] = options
    messages = [_message(message) for message in generation.prompt.messages]
    return "/chat/completions", body | {"messages": messages} | _tools(generation.prompt)


def _message(message: ChatMessage) -> dict[str, object]:
    fields: dict[str, object] = {"role": message.role, "content": message.content}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        fields["tool_calls"] = [_call(call) for call in message.tool_calls]
    return fields


def _call(call: ToolCall) -> dict[str, object]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _tools(prompt: Prompt) -> dict[str, object]:
    """What differs from the defaults, which are `auto` and parallel calls.

    Servers know no choice of several: tools that may not be called are not told of.
    """
    if not prompt.tools:
        return {}
    choice = prompt.tool_choice
    told = prompt.tools if choice.allowed is None else prompt.callable_tools
    fields: dict[str, object] = {"tools": [_tool(tool) for tool in told]}
    if choice.name is not None:
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice.mode != "auto":
        fields["tool_choice"] = choice.mode
    if not choice.parallel:
        fields["parallel_tool_calls"] = False
    return fields


def _tool(tool: Tool) -> dict[str, object]:
    return {"type": "function", "function": msgspec.to_builtins(tool)}


def _told(generation: Generation) -> str | list[int]:
    """A gap is told in ids too: the servers' own field for what is behind it is refused by most of them."""
    prompt = generation.prompt
    if prompt.text is not None and prompt.suffix is None:
        return prompt.text
    ids = generation.ids if generation.ids is not None else prompt.ids
    assert ids is not None  # `_check` has refused a gap without
    return list(ids)


def _options(kind: Kind, sampling: Sampling) -> dict[str, object]:
    options: dict[str, object] = {}
    if kind.full_top_p or sampling.top_p < 1:
        options["top_p"] = sampling.top_p
    if kind.no_top_k is not None:
        options["top_k"] = sampling.top_k or kind.no_top_k
    if sampling.stop:
        options["stop"] = list(sampling.stop)
    for field in kind.honours & DEFAULTS | set(_asked(sampling)):
        value = getattr(sampling, field)
        options[field] = list(value) if isinstance(value, tuple) else value
    return options


def _form(kind: Kind, prompt: Prompt, sampling: Sampling) -> dict[str, object] | None:
    """None where this kind cannot do it."""
    grammar = sampling.grammar
    return {} if grammar is None else kind.form(grammar, prompt.is_conversation)


def _asked(sampling: Sampling) -> list[str]:
    """The fields that not every kind of server knows, where they ask for something."""
    return sorted(field for field, off in OFF.items() if getattr(sampling, field) != off)


def _never(sampling: Sampling) -> dict[str, bool]:
    """What no answer of a remote server is read for, by the client's name for it."""
    return {
        "n": sampling.n > 1,
        "logprobs": sampling.logprobs is not None,
        "max_tokens": sampling.max_tokens < 1,
    }


def refusal(kind: Kind, prompt: Prompt, sampling: Sampling) -> Rejected | None:
    """Of the first field that this kind of server cannot honour."""
    refused = []
    if prompt.ids is not None and not kind.ids:
        refused.append("prompt")
    refused += [field for field in _asked(sampling) if field not in kind.honours]
    if sampling.top_k and kind.no_top_k is None:
        refused.append("top_k")
    if _form(kind, prompt, sampling) is None:
        refused.append("grammar")
    if prompt.speaks_of_tools and not kind.tools:
        refused.append("tools")
    if prompt.options and not kind.template_options:
        refused.append("chat_template_kwargs")
    never = [field for field, asked in _never(sampling).items() if asked]
    if never:
        reason = "this is not supported where the model runs on a server of its own"
        return Rejected(f"{never[0]}: {reason}", "unsupported_parameter")
    return _refusal(kind, refused[0]) if refused else None


def _check(kind: Kind, generation: Generation) -> None:
    """Raises Rejected."""
    fills_gaps = kind.ids and generation.ids and "stop_token_ids" in kind.honours
    if generation.prompt.suffix is not None and not fills_gaps:
        raise _refusal(kind, "suffix")
    if (refused := refusal(kind, generation.prompt, generation.sampling)) is not None:
        raise refused


def _refusal(kind: Kind, field: str) -> Rejected:
    what = "token ids" if field == "prompt" else "it"
    return Rejected(
        f"{field}: this model runs on a server that does not support {what} ({kind.name})",
        "unsupported_parameter",
    )
