"""`/v1/conversations`: sessions as OpenAI's clients make and read them."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.api.fields import convert
from gateway.api.generation import decoded, tenant_of
from gateway.api.paging import no_more_than, page
from gateway.api.responses import Item, Metadata, check_ids, messages_only
from gateway.api.responses_stored import as_json
from gateway.api.strictjson import decode_object
from gateway.archive import Archive, Conversation
from gateway.exchange import exchange_of
from sessions import Turn

NONE: frozenset[str] = frozenset()


class ConversationBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[Item], Meta(max_length=20)] = []
    metadata: Metadata = {}


class Conversations:
    """The endpoints below `/v1/conversations`."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def create(self, http: HttpRequest) -> Response:
        body = await decoded(_decode, await http.body())
        turns = tuple(item.turn() for item in body.items)
        return as_json(_told(await self._archive.create(_tenant(http), body.metadata, turns)))

    async def get(self, http: HttpRequest) -> Response:
        no_more_than(http.query_params, NONE)
        conversation, _ = await self._archive.conversation(_tenant(http), http.path_params["id"])
        return as_json(_told(conversation))

    async def delete(self, http: HttpRequest) -> Response:
        conversation_id = http.path_params["id"]
        await self._archive.delete_conversation(_tenant(http), conversation_id)
        return as_json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    async def items(self, http: HttpRequest) -> Response:
        """Turns have no ids of their own, but they stay where they are: an item is named after its place."""
        conversation, session = await self._archive.conversation(_tenant(http), http.path_params["id"])
        items = [_item(conversation, number, turn) for number, turn in enumerate(session.turns)]
        return as_json(page(items, http.query_params))


def _decode(data: bytes) -> ConversationBody:
    fields = dict(decode_object(data)) if data else {}
    fields["items"] = messages_only(fields.get("items"), "items")
    body = convert(fields, ConversationBody, {})
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


def _item(conversation: Conversation, number: int, turn: Turn) -> dict[str, Any]:
    item_id = f"msg_{conversation.id.removeprefix('conv_')}_{number}"
    role: Any = turn.role
    return Item(role=role, content=turn.content, id=item_id).told()
