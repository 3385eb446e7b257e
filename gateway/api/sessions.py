"""`/v1/sessions`: what is kept of `x-session-id`, for its owner to see and to delete."""

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.api.chat_tools import whole_call
from gateway.api.generation import tenant_of
from gateway.api.paging import no_more_than, page
from gateway.api.responses_stored import as_json
from gateway.archive import Archive
from gateway.exchange import exchange_of
from gateway.turns import to_message
from sessions import Session, Turn

NONE: frozenset[str] = frozenset()


class Sessions:
    """The endpoints below `/v1/sessions`. A conversation is one of them too."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def list(self, http: HttpRequest) -> Response:
        """The one used last comes first, unless another order is asked for."""
        ids = await self._archive.sessions(_tenant(http))
        return as_json(page([{"id": id, "object": "session"} for id in reversed(ids)], http.query_params))

    async def get(self, http: HttpRequest) -> Response:
        no_more_than(http.query_params, NONE)
        return as_json(_told(await self._archive.session(_tenant(http), http.path_params["id"])))

    async def delete(self, http: HttpRequest) -> Response:
        session_id = http.path_params["id"]
        await self._archive.delete_session(_tenant(http), session_id)
        return as_json({"id": session_id, "object": "session.deleted", "deleted": True})


def _tenant(http: HttpRequest) -> str:
    return tenant_of(exchange_of(http.scope)).name


def _told(session: Session) -> dict[str, Any]:
    messages = [_message(turn) for turn in session.turns]
    return {"id": session.id, "object": "session", "messages": messages}


def _message(turn: Turn) -> dict[str, Any]:
    """As Chat Completions takes it, and for answers which tier gave them and whether they were cut short."""
    message = to_message(turn)
    told: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        told["name"] = message.name
    if message.tool_calls:
        told["tool_calls"] = [whole_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        told["tool_call_id"] = message.tool_call_id
    if turn.role == "assistant":
        told |= {"tier": turn.tier, "partial": turn.partial}
    return told
