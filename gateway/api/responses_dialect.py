"""The dialect of `/v1/responses`: what a response goes on from, and what is kept of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from backends.prompt import Prompt
from gateway.api.dialect import Dialect
from gateway.api.responses import ResponsesBody, decode
from gateway.api.responses_items import turns_of
from gateway.api.responses_rendering import ResponseRendering
from gateway.archive import Archive, Conversation, StoredResponse
from gateway.config import Tenant
from gateway.loops import told
from gateway.request import Request
from gateway.turns import to_calls
from sessions import Session, Turn


@dataclass(frozen=True, slots=True)
class _Past:
    """What was said before, and the conversation that it was said in, if it has a name."""

    turns: tuple[Turn, ...] = ()
    conversation: tuple[Conversation, Session] | None = None


class RememberedResponse(ResponseRendering):
    """A response that knows what it goes on from."""

    def __init__(self, body: ResponsesBody, past: _Past) -> None:
        super().__init__(body)
        self.body = body
        self.past = past

    def new_turns(self, tier: str) -> tuple[Turn, ...]:
        """Calls of an answer that was cut short are forgotten: nobody will answer them."""
        answer = Turn(
            role="assistant",
            content=self.text,
            tier=tier,
            partial=not self.complete,
            calls=to_calls(self.calls) if self.complete else (),
        )
        return (*turns_of(self.body.items), answer)


class Responses(Dialect[ResponsesBody, RememberedResponse]):
    endpoint = "responses"
    typed = True
    sessions = False

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def decode(self, data: bytes) -> ResponsesBody:
        return decode(data)

    async def open(self, body: ResponsesBody, tenant: Tenant) -> tuple[Prompt, RememberedResponse]:
        past = await self._past(body, tenant.name)
        return body.prompt_after(past.turns), RememberedResponse(body, past)

    def requests(
        self, body: ResponsesBody, request: Request, rendering: RememberedResponse
    ) -> Sequence[Request]:
        """A prompt does not say who gave the answers in it, but the stored turns do."""
        said = (*rendering.past.turns, *turns_of(body.items))
        return (structs.replace(request, answered_by=told(said)),)

    async def _past(self, body: ResponsesBody, tenant: str) -> _Past:
        if body.previous_response_id is not None:
            previous = await self._archive.response(tenant, body.previous_response_id, "previous_response_id")
            return _Past(previous.turns)
        if body.conversation_id is not None:
            conversation, session = await self._archive.conversation_to_extend(
                tenant, body.conversation_id, "conversation"
            )
            return _Past(session.turns, (conversation, session))
        return _Past()

    async def keep(self, request: Request, rendering: RememberedResponse) -> None:
        """A conversation grows by complete answers; a response that broke off can still be looked at by its id."""
        if rendering.response is None:
            return
        if rendering.response["status"] == "in_progress":  # nobody waited for its end
            rendering.cut("cancelled")
        turns = rendering.new_turns(rendering.response["model"])
        if rendering.past.conversation is not None and rendering.complete:
            await self._archive.extend(*rendering.past.conversation, turns)
        if rendering.body.store:
            rendering.response["store"] = await self._archive.store(
                StoredResponse(
                    tenant=request.tenant.name,
                    id=rendering.response["id"],
                    response=rendering.response,
                    items=[item.told() for item in rendering.body.items],
                    turns=(*rendering.past.turns, *turns),
                    pieces=tuple(rendering.pieces),
                )
            )
