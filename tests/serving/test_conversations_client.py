"""The unmodified `openai` client's conversations, over real sockets and real stores."""

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI


@pytest.fixture
def client(front: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{front.url}/v1", api_key="hr_admin", max_retries=0, timeout=60) as made:
        yield made


def asked(front: Any, number: int = -1) -> list[tuple[str, str]]:
    """What the model was asked, as (role, text)."""
    return [(m.role, m.content) for m in front.dispatcher.requests[number].prompt.messages]


def test_a_conversation_grows(client: OpenAI, front: Any) -> None:
    first: Any = {"type": "message", "role": "user", "content": "One?"}
    conversation = client.conversations.create(items=[first], metadata={"a": "b"})
    assert conversation.object == "conversation" and conversation.metadata == {"a": "b"}
    assert client.conversations.retrieve(conversation.id).to_dict() == conversation.to_dict()
    made = client.responses.create(
        model="auto", input="Two?", conversation=conversation.id, instructions="Be brief."
    )
    assert made.conversation is not None and made.conversation.id == conversation.id
    assert asked(front) == [("system", "Be brief."), ("user", "One?"), ("user", "Two?")]
    list(
        client.responses.create(
            model="auto", input="Three?", conversation={"id": conversation.id}, stream=True
        )
    )
    assert [text for _, text in asked(front)] == ["One?", "Two?", "Hello", "Three?"]
    items: Any = list(client.conversations.items.list(conversation.id, order="asc", limit=2))
    assert [(item.role, item.content[0].text) for item in items] == [
        ("user", "One?"), ("user", "Two?"), ("assistant", "Hello"), ("user", "Three?"), ("assistant", "Hello"),
    ]  # fmt: skip
    assert len({item.id for item in items}) == 5
    assert client.conversations.delete(conversation.id).deleted
    for attempt in (client.conversations.retrieve, client.conversations.delete):
        with pytest.raises(openai.NotFoundError):
            attempt(conversation.id)
    with pytest.raises(openai.NotFoundError) as error:
        client.responses.create(model="auto", input="Four?", conversation=conversation.id)
    assert (error.value.code, error.value.param) == ("conversation_not_found", "conversation")


def test_a_conversation_is_relabelled(client: OpenAI) -> None:
    made = client.conversations.create(metadata={"a": "b", "c": "d"})
    changed = client.conversations.update(made.id, metadata={"a": "z"})
    assert changed.to_dict() == {**made.to_dict(), "metadata": {"a": "z"}}
    assert client.conversations.retrieve(made.id).metadata == {"a": "z"}
    for metadata in ({"k" * 65: ""}, {"k": 1}, None):
        with pytest.raises(openai.BadRequestError) as error:
            client.conversations.update(made.id, metadata=metadata)  # type: ignore[arg-type]
        assert str(error.value.param).startswith("metadata")


def test_items_are_added_and_found_again(client: OpenAI, front: Any) -> None:
    conversation = client.conversations.create(items=[{"role": "user", "content": "One"}])
    two: Any = [{"role": "assistant", "content": "Two"}, {"role": "user", "content": "Three"}]
    added: Any = client.conversations.items.create(conversation.id, items=two)
    assert [(item.role, item.content[0].text) for item in added.data] == [
        ("assistant", "Two"),
        ("user", "Three"),
    ]
    assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[1].id, False)
    listed = list(client.conversations.items.list(conversation.id, order="asc"))
    assert [item.id for item in listed][1:] == [item.id for item in added.data]
    found = client.conversations.items.retrieve(added.data[0].id, conversation_id=conversation.id)
    assert found.to_dict() == added.data[0].to_dict()
    client.responses.create(model="auto", input="Four", conversation=conversation.id)
    said = [message.content for message in front.dispatcher.requests[0].prompt.messages]
    assert said == ["One", "Two", "Three", "Four"]


def test_what_is_not_done_to_items_is_named(client: OpenAI) -> None:
    conversation = client.conversations.create(items=[{"role": "user", "content": "One"}])
    items, one = client.conversations.items, client.conversations.items.list(conversation.id).data[0]
    assert one.id is not None
    include: Any = ["message.output_text.logprobs"]
    attempts: list[tuple[Callable[[], Any], str]] = [
        (lambda: items.list(conversation.id, include=include), "include[]"),
        (lambda: items.retrieve(one.id or "", conversation_id=conversation.id, include=include), "include[]"),
        (lambda: items.create(conversation.id, items=[]), "items"),
        (lambda: items.create(conversation.id, items=[{"role": "user", "content": "x"}] * 21), "items"),
        (
            lambda: items.create(conversation.id, items=[{"type": "item_reference", "id": "x"}]),
            "items[0].type",
        ),
    ]
    for attempt, param in attempts:
        with pytest.raises(openai.BadRequestError) as error:
            attempt()
        assert error.value.param == param
    for item_id in ("msg_nothing", one.id[:-1] + "7"):
        with pytest.raises(openai.NotFoundError):
            items.retrieve(item_id, conversation_id=conversation.id)


def test_a_deleted_item_is_gone_and_the_others_stay_what_they_were(client: OpenAI, front: Any) -> None:
    said: Any = [{"role": "user", "content": text} for text in ("One", "Two", "Three")]
    conversation = client.conversations.create(items=said)
    items = client.conversations.items
    one, two, three = items.list(conversation.id, order="asc").data
    told = items.delete(two.id or "", conversation_id=conversation.id)
    assert told.to_dict() == conversation.to_dict()
    assert items.list(conversation.id, order="asc").data == [one, three]
    assert items.retrieve(three.id or "", conversation_id=conversation.id) == three
    for attempt in (items.retrieve, items.delete):
        with pytest.raises(openai.NotFoundError):
            attempt(two.id or "", conversation_id=conversation.id)
    [added] = items.create(conversation.id, items=[{"role": "user", "content": "Four"}]).data
    assert added.id not in (one.id, two.id, three.id)
    client.responses.create(model="auto", input="Five", conversation=conversation.id)
    assert asked(front) == [("user", text) for text in ("One", "Three", "Four", "Five")]


def test_an_empty_conversation(client: OpenAI) -> None:
    conversation = client.conversations.create()
    assert list(client.conversations.items.list(conversation.id)) == []
