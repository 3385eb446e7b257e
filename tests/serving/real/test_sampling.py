"""Sampling and output options over the whole of it, through the unmodified `openai` client."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

pytestmark = pytest.mark.models

ASK: Any = [{"role": "user", "content": "Repeat exactly: café 🙂 Kolo"}]
STORY: Any = [{"role": "user", "content": "Tell me about a mill."}]
TEXT = "The mill stands by the river. The wheel turns when the water"


@pytest.fixture(scope="module")
def client(serving: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{serving.url}/v1", api_key="any", max_retries=0, timeout=60) as made:
        yield made


def test_logprobs_are_of_the_text_token_by_token(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="7b", messages=ASK, temperature=0, max_tokens=30, logprobs=True, top_logprobs=3,
        presence_penalty=0.5, logit_bias={"0": -5},
    )  # fmt: skip
    choice, usage = answer.choices[0], answer.usage
    assert choice.logprobs is not None and choice.logprobs.content is not None and usage is not None
    told = choice.logprobs.content
    assert b"".join(bytes(token.bytes or []) for token in told).decode() == choice.message.content
    assert len(told) == usage.completion_tokens - (choice.finish_reason == "stop")
    for token in told:
        assert token.logprob <= 0
        assert [other.logprob for other in token.top_logprobs] == sorted(
            (other.logprob for other in token.top_logprobs), reverse=True
        )
        assert len(token.top_logprobs) == 3
    assert told[0].token == told[0].top_logprobs[0].token  # greedy; nothing is penalised yet


def test_logprobs_in_a_stream_are_those_of_the_whole(client: OpenAI) -> None:
    fields: Any = {
        "model": "7b", "messages": ASK, "temperature": 0, "max_tokens": 30, "logprobs": True, "stop": ["Kolo"],
    }  # fmt: skip
    whole = client.chat.completions.create(**fields).choices[0]
    assert whole.logprobs is not None
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**fields, stream=True)]
    streamed = [token for choice in chunks if choice.logprobs for token in choice.logprobs.content or []]
    told = whole.logprobs.content or []
    assert [token.token for token in streamed] == [token.token for token in told]
    assert [token.logprob for token in streamed] == pytest.approx([token.logprob for token in told], abs=1e-3)
    assert "".join(choice.delta.content or "" for choice in chunks) == whole.message.content


def test_several_answers(client: OpenAI) -> None:
    fields: Any = {"model": "7b", "messages": STORY, "temperature": 1.0, "seed": 11, "max_tokens": 20}
    one = client.chat.completions.create(**fields)
    several = client.chat.completions.create(**fields, n=3)
    texts = [choice.message.content for choice in several.choices]
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert texts[0] == one.choices[0].message.content
    assert len(set(texts)) == 3
    assert one.usage is not None and several.usage is not None
    assert several.usage.prompt_tokens == one.usage.prompt_tokens
    assert several.usage.completion_tokens == 60
    streamed: dict[int, str] = defaultdict(str)
    finishes: dict[int, str] = {}
    for chunk in client.chat.completions.create(**fields, n=3, stream=True):
        for choice in chunk.choices:
            assert choice.index not in finishes
            streamed[choice.index] += choice.delta.content or ""
            if choice.finish_reason is not None:
                finishes[choice.index] = choice.finish_reason
    assert [streamed[index] for index in range(3)] == texts
    assert finishes == {0: "length", 1: "length", 2: "length"}


def test_the_echo_of_a_prompt_with_its_logprobs(client: OpenAI) -> None:
    def score(max_tokens: int, **fields: Any) -> Any:
        return client.completions.create(
            model="7b", prompt=TEXT, temperature=0, max_tokens=max_tokens, echo=True, logprobs=2, **fields
        )

    alone = score(0)
    choice = alone.choices[0]
    assert (choice.text, choice.finish_reason, alone.usage.completion_tokens) == (TEXT, "length", 0)
    told = choice.logprobs
    assert "".join(told.tokens) == TEXT
    assert (told.token_logprobs[0], told.top_logprobs[0]) == (None, None)
    assert [
        TEXT[at : at + len(token)] for at, token in zip(told.text_offset, told.tokens, strict=True)
    ] == told.tokens
    client.completions.create(model="7b", prompt=TEXT + " flows.", max_tokens=1)  # into the cache
    more = score(6).choices[0]
    count = len(told.tokens)
    assert more.text.startswith(TEXT)
    assert more.logprobs.token_logprobs[1:count] == pytest.approx(told.token_logprobs[1:], abs=1e-3)
    assert len(more.logprobs.tokens) == count + 6
    assert "".join(more.logprobs.tokens) == more.text
    assert more.logprobs.text_offset[count] == len(TEXT)
    chunks = [chunk.choices[0] for chunk in score(6, stream=True)]
    assert "".join(choice.text for choice in chunks) == more.text
    offsets = [at for choice in chunks if choice.logprobs for at in choice.logprobs.text_offset]
    assert offsets == more.logprobs.text_offset


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"49152": 1}}, "logit_bias"),
        ({"extra_body": {"stop_token_ids": [49152]}}, "stop_token_ids"),
        ({"extra_body": {"min_tokens": 2000}}, "min_tokens"),
    ],
)
def test_what_only_the_engine_can_know_is_refused_by_name(
    client: OpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="7b", messages=ASK, **fields)
    assert error.value.param == param
    assert error.value.message.count("sampling.") == 0


def test_extensions(client: OpenAI) -> None:
    def ask(**extra: Any) -> Any:
        return client.chat.completions.create(
            model="7b", messages=ASK, temperature=0, max_tokens=12, extra_body=extra
        )

    plain = ask().choices[0].message.content
    assert ask(min_p=1.0).choices[0].message.content == plain
    assert ask(repetition_penalty=1.8).choices[0].message.content != plain
    end = 2  # of SmolLM2: <|im_end|>
    assert ask(min_tokens=12, logit_bias={end: 100}).usage.completion_tokens == 12
    assert ask(logit_bias={end: 100}).usage.completion_tokens == 1
