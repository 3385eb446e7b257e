from dataclasses import replace
from typing import Any

import pytest

from backends.engine.admission import MAX_STOPS, Limits, refusal
from backends.wire import MAX_BIASED, MAX_GRAMMAR, MAX_TOP, Grammar, Sampling, Submit

LIMITS = Limits(vocab_size=100, context_length=10, eos=frozenset({0}), grammars=True)
NAN = float("nan")


def submit(prompt: list[int] | None = None, timeout: float | None = None, **sampling: Any) -> Submit:
    return Submit(
        id="g",
        prompt=[1, 2, 3] if prompt is None else prompt,
        sampling=Sampling(**{"max_tokens": 4, **sampling}),
        timeout=timeout,
    )


@pytest.mark.parametrize(
    "good",
    [
        submit(),
        submit([0] * 9),
        submit([99]),
        submit(max_tokens=10**9),
        submit([1] * 10, max_tokens=0),  # vllm#6521: the prompt is scored, nothing more
        submit(min_p=1.0, presence_penalty=-2.0, frequency_penalty=2.0, repetition_penalty=0.5),
        submit(logit_bias={0: -100.0, 99: 100.0}, min_tokens=4),
        submit(n=8, logprobs=20, prompt_logprobs=True),
        submit(temperature=0.0, top_p=1.0, top_k=0, seed=2**64 - 1),
        submit(stop=("a", "ď"), stop_token_ids=(0, 99)),
        submit(grammar=Grammar("regex", "a" * MAX_GRAMMAR)),
        submit(timeout=0.0),
        submit(timeout=float("inf")),
    ],
)
def test_what_can_run_is_not_refused(good: Submit) -> None:
    assert refusal(good, LIMITS) is None


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (submit([]), "prompt"),  # vllm#7283, #7632, #7746: it killed the engine
        (submit([1, 100]), "prompt"),
        (submit([-1]), "prompt"),
        (submit([2**40]), "prompt"),
        (submit(max_tokens=-5), "sampling.max_tokens"),
        (submit(temperature=-0.1), "sampling.temperature"),
        (submit(temperature=NAN), "sampling.temperature"),
        (submit(temperature=float("inf")), "sampling.temperature"),
        (submit(top_p=0.0), "sampling.top_p"),
        (submit(top_p=1.1), "sampling.top_p"),
        (submit(top_p=NAN), "sampling.top_p"),
        (submit(top_k=-1), "sampling.top_k"),
        (submit(seed=-1), "sampling.seed"),
        (submit(seed=2**64), "sampling.seed"),
        (submit(stop=("a", "")), "sampling.stop"),
        (submit(grammar=Grammar("regex", "a" * (MAX_GRAMMAR + 1))), "sampling.grammar"),
        (submit(grammar=Grammar("regex", "\ud800")), "sampling.grammar"),
        (submit(stop=("a\ud800",)), "sampling.stop"),
        (submit(stop=("a" * MAX_STOPS, "b")), "sampling.stop"),
        (submit(stop_token_ids=(100,)), "sampling.stop_token_ids"),
        (submit(min_p=-0.1), "sampling.min_p"),
        (submit(min_p=NAN), "sampling.min_p"),
        (submit(presence_penalty=NAN), "sampling.presence_penalty"),
        (submit(frequency_penalty=float("inf")), "sampling.frequency_penalty"),
        (submit(repetition_penalty=0.0), "sampling.repetition_penalty"),
        (submit(repetition_penalty=NAN), "sampling.repetition_penalty"),
        (submit(logit_bias={100: 1.0}), "sampling.logit_bias"),
        (submit(logit_bias={-1: 1.0}), "sampling.logit_bias"),
        (submit(logit_bias={5: NAN}), "sampling.logit_bias"),
        (submit(logit_bias=dict.fromkeys(range(MAX_BIASED + 2), 1.0)), "sampling.logit_bias"),
        (submit(min_tokens=-1), "sampling.min_tokens"),
        (submit(min_tokens=5), "sampling.min_tokens"),
        (submit(min_tokens=1, stop_token_ids=tuple(range(1, 100))), "sampling.min_tokens"),
        (submit(n=0), "sampling.n"),
        (submit(n=2**40), "sampling.n"),
        (submit(logprobs=-1), "sampling.logprobs"),
        (submit(logprobs=MAX_TOP + 1), "sampling.logprobs"),
        (submit(prompt_logprobs=True), "sampling.prompt_logprobs"),
        (submit(timeout=-1.0), "timeout"),
        (submit(timeout=NAN), "timeout"),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_name_of_its_field(bad: Submit, field: str) -> None:
    refused = refusal(bad, LIMITS)
    assert refused is not None
    assert (refused.id, refused.code) == ("g", "invalid")
    assert refused.message.startswith(field + ":")


def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers() -> None:
    refused = refusal(submit([1] * 12), LIMITS)
    assert refused is not None
    assert refused.code == "context_length_exceeded"
    assert "12" in refused.message and "10" in refused.message
    assert refusal(submit([1] * 10), LIMITS) is not None


def test_an_engine_without_grammars_says_so() -> None:
    refused = refusal(submit(grammar=Grammar("regex", "a")), replace(LIMITS, grammars=False))
    assert refused is not None and refused.message.startswith("sampling.grammar: ")
