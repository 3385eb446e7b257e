"""Completions over a real coder and a real model that is none: gaps, several prompts, token ids."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from backends.prompt import Prompt
from backends.tokenizer import Tokenizer

pytestmark = pytest.mark.models

CONFIG = """
server: {{port: 0}}
state: {{folder: {folder}}}
tiers:
  - name: small
    engines: [{{model: {small}, dtype: float32, kv_tokens: 4096}}]
  - name: coder
    engines: [{{model: {coder}, dtype: float32, kv_tokens: 4096}}]
anonymous: {{name: anonymous}}
"""
BEFORE = "def total(prices: list[float]) -> float:\n    result = 0.0\n    for price in prices:\n"
AFTER = "    return result\n"


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory,
    start_serving: Callable[..., Any],
    smollm2_folder: Path,
    qwen_05b_folder: Path,
) -> Iterator[OpenAI]:
    folder = tmp_path_factory.mktemp("coder")
    file = folder / "headrace.yaml"
    file.write_text(CONFIG.format(folder=folder, small=smollm2_folder, coder=qwen_05b_folder))
    serving = start_serving("--config", str(file))
    with OpenAI(base_url=f"{serving.url}/v1", api_key="any", max_retries=0, timeout=60) as made:
        yield made
    assert serving.stop(within=60) == 0


def test_the_middle_of_a_function(client: OpenAI) -> None:
    """Its first line does the work. What an instruct model says after it, often the rest once more, is its own."""
    answer = client.completions.create(
        model="coder", prompt=BEFORE, suffix=AFTER, temperature=0, max_tokens=48, stop=AFTER
    ).choices[0]
    assert answer.finish_reason == "stop"
    names: dict[str, Any] = {}
    exec(compile(ast.parse(BEFORE + answer.text + AFTER), "middle", "exec"), names)
    assert names["total"]([1.5, 2.0, 3.0]) == 6.5


def test_auto_goes_to_who_was_taught(client: OpenAI) -> None:
    answer = client.completions.create(model="auto", prompt=BEFORE, suffix=AFTER, max_tokens=2)
    assert answer.model == "coder"


def test_a_model_that_was_not_taught_refuses(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="small", prompt=BEFORE, suffix=AFTER)
    assert (refused.value.param, refused.value.code) == ("suffix", "unsupported_parameter")


PROMPTS = ["The river runs", "Two and two make", "Once upon a time there"]


def test_several_prompts_are_each_answered_as_alone(client: OpenAI) -> None:
    fields: Any = {"model": "small", "temperature": 0, "max_tokens": 8, "n": 2, "echo": True, "logprobs": 1}
    alone = [client.completions.create(prompt=prompt, **fields) for prompt in PROMPTS]
    both = client.completions.create(prompt=PROMPTS, **fields)
    assert [choice.index for choice in both.choices] == list(range(6))
    expected = [choice for each in alone for choice in each.choices]
    assert [choice.text for choice in both.choices] == [choice.text for choice in expected]
    assert [choice.logprobs and choice.logprobs.text_offset for choice in both.choices] == [
        choice.logprobs and choice.logprobs.text_offset for choice in expected
    ]
    assert both.usage is not None
    assert both.usage.total_tokens == sum(each.usage.total_tokens for each in alone if each.usage)


def test_streamed_they_come_in_turns(client: OpenAI) -> None:
    fields: Any = {"model": "small", "prompt": PROMPTS, "temperature": 0, "max_tokens": 12}
    whole = client.completions.create(**fields)
    chunks = [
        choice for chunk in client.completions.create(**fields, stream=True) for choice in chunk.choices
    ]
    for choice in whole.choices:
        own = [each for each in chunks if each.index == choice.index]
        assert "".join(each.text for each in own) == choice.text
        assert own[-1].finish_reason == choice.finish_reason
    order = [each.index for each in chunks if each.text]
    assert order != sorted(order), "they were made one after the other"


def test_ids_are_continued_as_their_text_is(client: OpenAI, smollm2_folder: Path) -> None:
    tokenizer = Tokenizer(smollm2_folder)
    ids = [tokenizer.encode_now(Prompt(text=prompt)) for prompt in PROMPTS]
    fields: Any = {"model": "small", "temperature": 0, "max_tokens": 8, "echo": True}
    by_text = client.completions.create(prompt=PROMPTS, **fields)
    by_ids = client.completions.create(prompt=ids, **fields)
    one = client.completions.create(prompt=ids[1], **fields)
    assert [choice.text for choice in by_ids.choices] == [choice.text for choice in by_text.choices]
    assert one.choices[0].text == by_text.choices[1].text


@pytest.mark.parametrize(
    ("model", "prompt", "param"),
    [("small", [[1], [2, 5_000_000]], "prompt[1][1]"), ("auto", [1, 2], "prompt")],
)
def test_ids_without_a_meaning_are_named(client: OpenAI, model: str, prompt: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=model, prompt=prompt)
    assert refused.value.param == param
