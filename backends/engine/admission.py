"""Which submissions an engine refuses, and in which words. Nothing that passes here can fail for what it asks."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from backends.wire import (
    MAX_ANSWERS,
    MAX_BIASED,
    MAX_GRAMMAR,
    MAX_TOP,
    EngineConfig,
    Grammar,
    Refused,
    Sampling,
    Submit,
)

MAX_STOPS = 32_768  # characters of all stop strings of a request: their automaton takes milliseconds to build


@dataclass(frozen=True, slots=True)
class Limits:
    """`context_length`: tokens of prompt and answer together, that the model and the KV blocks can take."""

    vocab_size: int
    context_length: int
    eos: frozenset[int] = frozenset()
    grammars: bool = False  # whether answers can be held to one


def context_length(config: EngineConfig, max_model_len: int) -> int:
    """Tokens that a model of `max_model_len`, `config` and the blocks have room for. Raises ValueError for too few."""
    allowed = max_model_len if config.max_model_len is None else min(max_model_len, config.max_model_len)
    length = min(allowed, config.kv_blocks * config.block_size)
    if length < 2:
        raise ValueError(f"max_model_len: a context of {length} tokens holds no prompt and answer")
    return length


def refusal(submit: Submit, limits: Limits) -> Refused | None:
    """Why `submit` cannot run, however long it waits. The message names the field; None when it can."""
    answer = min(1, submit.sampling.max_tokens)
    if len(submit.prompt) + answer > limits.context_length:
        message = (
            f"prompt: {len(submit.prompt)} tokens and at least {answer} of answer are more than the context of "
            f"{limits.context_length} tokens"
        )
        return Refused(id=submit.id, code="context_length_exceeded", message=message)
    fault = next(_faults(submit, limits), None)
    return None if fault is None else Refused(id=submit.id, code="invalid", message=fault)


def _faults(submit: Submit, limits: Limits) -> Iterator[str]:
    if not submit.prompt:
        yield "prompt: it is empty"
    elif not (0 <= min(submit.prompt) and max(submit.prompt) < limits.vocab_size):
        yield f"prompt: an id is outside the vocabulary of {limits.vocab_size}"
    # Each comparison is such that it fails for NaN.
    if submit.timeout is not None and not submit.timeout >= 0:
        yield f"timeout: {submit.timeout} is not a time from now on"
    yield from _sampling_faults(submit.sampling, limits)
    yield from _grammar_faults(submit.sampling.grammar, limits)


def _sampling_faults(sampling: Sampling, limits: Limits) -> Iterator[str]:
    if sampling.max_tokens < 0:
        yield f"sampling.max_tokens: {sampling.max_tokens} is negative"
    if not (sampling.temperature >= 0 and math.isfinite(sampling.temperature)):
        yield f"sampling.temperature: {sampling.temperature} is not a finite number from 0 on"
    if not 0 < sampling.top_p <= 1:
        yield f"sampling.top_p: {sampling.top_p} is not above 0 and at most 1"
    if sampling.top_k < 0:
        yield f"sampling.top_k: {sampling.top_k} is negative"
    if not 0 <= sampling.seed < 2**64:
        yield f"sampling.seed: {sampling.seed} is not an unsigned number of 64 bits"
    if not 0 <= sampling.min_p <= 1:
        yield f"sampling.min_p: {sampling.min_p} is not from 0 to 1"
    if not 1 <= sampling.n <= MAX_ANSWERS:
        yield f"sampling.n: {sampling.n} is not from 1 to {MAX_ANSWERS}"
    if not 0 <= (sampling.logprobs or 0) <= MAX_TOP:
        yield f"sampling.logprobs: {sampling.logprobs} is not from 0 to {MAX_TOP}"
    if sampling.prompt_logprobs and sampling.logprobs is None:
        yield "sampling.prompt_logprobs: it needs logprobs"
    yield from _stop_faults(sampling, limits)
    yield from _penalty_faults(sampling)
    yield from _bias_faults(sampling, limits)


def _grammar_faults(grammar: Grammar | None, limits: Limits) -> Iterator[str]:
    """What is seen before it is compiled."""
    if grammar is None:
        return
    if not limits.grammars:
        yield "sampling.grammar: this engine does not constrain its answers"
    if len(grammar.source) > MAX_GRAMMAR:
        yield f"sampling.grammar: {len(grammar.source)} characters are more than {MAX_GRAMMAR}"
    if any("\ud800" <= letter <= "\udfff" for letter in grammar.source):
        yield "sampling.grammar: it is no Unicode text"


def _penalty_faults(sampling: Sampling) -> Iterator[str]:
    for name in ("presence_penalty", "frequency_penalty"):
        if not math.isfinite(getattr(sampling, name)):
            yield f"sampling.{name}: {getattr(sampling, name)} is not a finite number"
    if not (sampling.repetition_penalty > 0 and math.isfinite(sampling.repetition_penalty)):
        yield f"sampling.repetition_penalty: {sampling.repetition_penalty} is not a finite number above 0"


def _bias_faults(sampling: Sampling, limits: Limits) -> Iterator[str]:
    if len(sampling.logit_bias) > MAX_BIASED + 1:  # where calls are banned, the mark of one is added to them
        yield f"sampling.logit_bias: {len(sampling.logit_bias)} tokens are more than {MAX_BIASED}"
    for id, bias in sampling.logit_bias.items():
        if not 0 <= id < limits.vocab_size:
            yield f"sampling.logit_bias: {id} is outside the vocabulary of {limits.vocab_size}"
        if not math.isfinite(bias):
            yield f"sampling.logit_bias: {bias} is not a finite number"


def _stop_faults(sampling: Sampling, limits: Limits) -> Iterator[str]:
    if "" in sampling.stop:
        yield "sampling.stop: a stop string is empty"
    if any("\ud800" <= letter <= "\udfff" for stop in sampling.stop for letter in stop):
        yield "sampling.stop: a stop string is no Unicode text"
    if sum(map(len, sampling.stop)) > MAX_STOPS:
        yield f"sampling.stop: the strings have more than {MAX_STOPS} characters together"
    for id in sampling.stop_token_ids:
        if not 0 <= id < limits.vocab_size:
            yield f"sampling.stop_token_ids: {id} is outside the vocabulary of {limits.vocab_size}"
    if not 0 <= sampling.min_tokens <= sampling.max_tokens:
        yield f"sampling.min_tokens: {sampling.min_tokens} is not from 0 to max_tokens, {sampling.max_tokens}"
    ends = limits.eos.union(sampling.stop_token_ids)
    if sampling.min_tokens and len(ends) >= limits.vocab_size:
        yield "sampling.min_tokens: every token would end the answer"
