"""`/v1/conversations`: sessions as OpenAI's clients make and read them."""

from itertools import islice
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.api.fields import convert
from gateway.api.generation import decoded, tenant_of
from gateway.api.paging import all_of, no_more_than, page
from gateway.api.responses import Metadata
from gateway.api.responses_items import (
    Item,
    check_ids,
    items_only,
    result_fields,
    told_turn,
    turns_of,
    without,
)
from gateway.api.responses_stored import as_json
from gateway.api.strictjson import decode_object
from gateway.archive import Archive, Conversation, not_found
from gateway.exchange import exchange_of
from gateway.turns import check_results
from sessions import Session, Turn

NONE: frozenset[str] = frozenset()


class ConversationBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[Item], Meta(max_length=20)] = []
    metadata: Metadata = {}


class UpdateBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    metadata: Metadata


class ItemsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[Item], Meta(min_length=1, max_length=20)]


class Conversations:
    """The endpoints below `/v1/conversations`."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def create(self, http: HttpRequest) -> Response:
        body = await decoded(_decode, await http.body())
        turns = turns_of(body.items)
        check_results((), turns, result_fields(body.items, "items"))
        return as_json(_told(await self._archive.create(_tenant(http), body.metadata, turns)))

    async def get(self, http: HttpRequest) -> Response:
        no_more_than(http.query_params, NONE)
        conversation, _ = await self._archive.conversation(_tenant(http), http.path_params["id"])
        return as_json(_told(conversation))

    async def delete(self, http: HttpRequest) -> Response:
        conversation_id = http.path_params["id"]
        await self._archive.delete_conversation(_tenant(http), conversation_id)
        return as_json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    async def update(self, http: HttpRequest) -> Response:
        """Its metadata, all of it."""
        body = await decoded(_decode_update, await http.body())
        return as_json(
            _told(await self._archive.relabel(_tenant(http), http.path_params["id"], body.metadata))
        )

    async def items(self, http: HttpRequest) -> Response:
        return as_json(page(await self._items(http), http.query_params))

    async def add_items(self, http: HttpRequest) -> Response:
        no_more_than(http.query_params, NONE)
        body = await decoded(_decode_items, await http.body())
        turns = turns_of(body.items)
        _, before = await self._archive.conversation(_tenant(http), http.path_params["id"])
        check_results(before.turns, turns, result_fields(body.items, "items"))
        made, session = await self._archive.add(_tenant(http), http.path_params["id"], turns)
        return as_json(all_of(_told_items(made, session, len(session.turns) - len(turns))))

    async def item(self, http: HttpRequest) -> Response:
        no_more_than(http.query_params, NONE)
        return as_json(await self._found_item(http))

    async def delete_item(self, http: HttpRequest) -> Response:
        """A call takes its outputs along, which would mean nothing without it."""
        no_more_than(http.query_params, NONE)
        conversation, session = await self._archive.conversation(_tenant(http), http.path_params["id"])
        item_id = http.path_params["item_id"]
        for place, turn in session.placed:
            rest = without(turn, _name(conversation, place), item_id)
            if rest != turn and await self._change(conversation, session, place, turn, rest):
                return as_json(_told(conversation))
        raise not_found("item", item_id)

    async def _change(
        self, conversation: Conversation, session: Session, place: int, before: Turn, after: Turn | None
    ) -> bool:
        lost = {call.id for call in before.calls} - {call.id for call in (after.calls if after else ())}
        for number, turn in session.placed:
            if number > place and turn.answers in lost:
                await self._archive.replace(conversation, session, number, turn, None)
        return await self._archive.replace(conversation, session, place, before, after)

    async def _items(self, http: HttpRequest) -> list[dict[str, Any]]:
        return _told_items(*await self._archive.conversation(_tenant(http), http.path_params["id"]))

    async def _found_item(self, http: HttpRequest) -> dict[str, Any]:
        item_id = http.path_params["item_id"]
        for item in await self._items(http):
            if item["id"] == item_id:
                return item
        raise not_found("item", item_id)


def _decode(data: bytes) -> ConversationBody:
    fields = dict(decode_object(data)) if data else {}
    fields["items"] = items_only(fields.get("items"), "items")
    body = convert(fields, ConversationBody, {})
    check_ids(body.items, "items")
    return body


def _decode_update(data: bytes) -> UpdateBody:
    return convert(decode_object(data), UpdateBody, {})


def _decode_items(data: bytes) -> ItemsBody:
    fields = dict(decode_object(data))
    fields["items"] = items_only(fields.get("items"), "items")
    body = convert(fields, ItemsBody, {})
    check_ids(body.items, "items")
    return body


def _tenant(http: HttpRequest) -> str:
    return tenant_of(exchange_of(http.scope)).name


def _told(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created_at,
        "metadata": conversation.metadata,
    }


def _told_items(conversation: Conversation, session: Session, since: int = 0) -> list[dict[str, Any]]:
    """Turns have no ids of their own, but they stay where they are: their items are named after their places."""
    placed = islice(session.placed, since, None)
    return [item for place, turn in placed for item in told_turn(turn, _name(conversation, place))]


def _name(conversation: Conversation, place: int) -> str:
    return f"{conversation.id.removeprefix('conv_')}_{place}"
