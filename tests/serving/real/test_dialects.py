"""The same engines through the other dialects, by the clients that speak them."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

pytestmark = pytest.mark.models

QUESTION = "What is the capital of France?"
ASK: Any = {"model": "7b", "max_tokens": 24, "messages": [{"role": "user", "content": QUESTION}]}
COLD: Any = {"extra_body": {"temperature": 0}}


@pytest.fixture(scope="module")
def claude(serving: Any) -> Iterator[Anthropic]:
    with Anthropic(base_url=serving.url, api_key="any", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def client(serving: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{serving.url}/v1", api_key="any", max_retries=0, timeout=60) as made:
        yield made


def test_a_message_and_its_stream_say_the_same(claude: Anthropic) -> None:
    whole: Any = claude.messages.create(**ASK, **COLD)
    assert "Paris" in whole.content[0].text
    with claude.messages.stream(**ASK, **COLD) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        final = stream.get_final_message()
    assert final.stop_reason == whole.stop_reason
    used: Any = whole.usage
    again: Any = final.usage
    assert again.cache_read_input_tokens > 0
    assert (
        again.input_tokens + again.cache_read_input_tokens == used.input_tokens + used.cache_read_input_tokens
    )


def test_a_count_is_what_is_used(claude: Anthropic) -> None:
    messages: Any = ASK["messages"]
    counted = claude.messages.count_tokens(model="7b", messages=messages, system="Be brief.").input_tokens
    usage = claude.messages.create(**{**ASK, "max_tokens": 1}, system="Be brief.").usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_the_stop_sequence_is_told_and_not_in_the_text(claude: Anthropic) -> None:
    message: Any = claude.messages.create(**ASK, **COLD, stop_sequences=["zebra", "Paris"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Paris")
    assert "Paris" not in message.content[0].text


@pytest.mark.parametrize("conversing", [True, False])
def test_a_turn_finds_the_one_before_it_cached(client: OpenAI, conversing: bool) -> None:
    first: Any = {"conversation": client.conversations.create().id} if conversing else {}
    made = client.responses.create(
        model="7b", input="My name is Ada, and I am a miller.", max_output_tokens=16, **first
    )
    then: Any = first or {"previous_response_id": made.id}
    *_, last = client.responses.create(
        model="7b", input="What is my name?", temperature=0, max_output_tokens=24, stream=True, **then
    )
    assert last.type in ("response.completed", "response.incomplete")
    used, again = made.usage, last.response.usage
    assert used is not None and again is not None
    assert again.input_tokens > used.total_tokens
    assert again.input_tokens_details.cached_tokens >= used.input_tokens // 16 * 16


def test_a_decision_foretells_the_answer(client: OpenAI, serving: Any) -> None:
    messages: Any = [{"role": "user", "content": "Name the mill's parts, please."}]

    def decide() -> Any:
        return httpx.post(f"{serving.url}/v1/route", json={"model": "auto", "messages": messages}).json()

    before = decide()
    raw = client.chat.completions.with_raw_response.create(model="auto", messages=messages, max_tokens=4)
    usage: Any = raw.parse().usage
    assert before["tier"] == raw.headers["x-headrace-tier"]
    assert before["reason"] == raw.headers["x-headrace-reason"]
    assert before["task"] == raw.headers["x-headrace-task"]
    assert before["prompt_tokens"][before["tier"]] == usage.prompt_tokens
    serving.eventually(
        lambda: decide()["cached_tokens"][before["tier"]] > before["cached_tokens"][before["tier"]]
    )
