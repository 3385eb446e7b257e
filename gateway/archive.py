"""What is remembered of a tenant: responses by id, sessions, and conversations, which are sessions with a label.

Ids are 128 random bits and owned: another tenant's is answered exactly like an unknown one.
"""

import logging
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from gateway.errors import ApiError
from gateway.metrics import Metrics
from gateway.owed_turns import OwedTurns, extend
from gateway.recall import MOST, check_size, store_unavailable
from sessions import Session, SessionConflict, SessionNotFound, SessionStore, SessionStoreUnavailable, Turn
from sessions.documents import DocumentStore

logger = logging.getLogger(__name__)

CONVERSATION_ID = re.compile(r"conv_[0-9a-f]{32}")


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`response` as it was told; `items`: its input; `turns`: the conversation up to its answer, no instructions.

    It holds the whole conversation, so that it can be gone on from whatever becomes of the responses before it.
    """

    tenant: str
    id: str
    response: dict[str, Any]
    items: list[dict[str, Any]]
    turns: tuple[Turn, ...]
    pieces: tuple[tuple[int, int], ...] = ()  # of a stream: the output item and the characters of each


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """The label of a session."""

    tenant: str
    id: str
    created_at: int  # Unix seconds
    metadata: dict[str, str] = {}

    @property
    def session_id(self) -> str:
        return f"sess_{self.id.removeprefix('conv_')}"


Document = TypeVar("Document", StoredResponse, Conversation)


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


class Archive:
    """The stores behind both, with their errors in the words of the API: 404, and 503 for a store that is down."""

    def __init__(
        self, documents: DocumentStore, sessions: SessionStore, metrics: Metrics, most: int = MOST
    ) -> None:
        """`most`: as for `gateway.recall.Memory`."""
        self._most = most
        self._documents = documents
        self._sessions = sessions
        self._owed = OwedTurns(sessions)
        self._metrics = metrics

    async def close(self) -> None:
        """Writes down what is still owed, while the stores are open."""
        await self._owed.close()

    async def response(self, tenant: str, response_id: str, param: str | None = None) -> StoredResponse:
        """`param`: the field that names it, where one does."""
        found = await self._find(StoredResponse, tenant, response_id)
        if found is None:
            raise not_found("response", response_id, param)
        return found

    async def store(self, response: StoredResponse) -> bool:
        """Whether it could be stored. Its answer has been given by now, so a failure is not the client's error."""
        try:
            await self._documents.put(response.tenant, response.id, msgspec.msgpack.encode(response))
        except SessionStoreUnavailable as error:
            self._metrics.state_backend("sessions", up=False)
            logger.error("response %s is not stored: %s", response.id, error)
            return False
        self._metrics.state_backend("sessions", up=True)
        return True

    async def delete_response(self, tenant: str, response_id: str) -> None:
        with self._asking():
            deleted = await self._documents.delete(tenant, response_id)
        if not deleted:
            raise not_found("response", response_id)

    async def create(self, tenant: str, metadata: dict[str, str], turns: tuple[Turn, ...]) -> Conversation:
        with self._asking():
            session = await self._sessions.create(tenant)
            if turns:
                await self._sessions.append(tenant, session.id, turns, session.version)
            made = Conversation(
                tenant=tenant,
                id=f"conv_{session.id.removeprefix('sess_')}",
                created_at=int(time.time()),
                metadata=metadata,
            )
            await self._documents.put(tenant, made.id, msgspec.msgpack.encode(made))
        return made

    async def conversation(
        self, tenant: str, conversation_id: str, param: str | None = None
    ) -> tuple[Conversation, Session]:
        """`param`: as for a response."""
        missing = not_found("conversation", conversation_id, param)
        if CONVERSATION_ID.fullmatch(conversation_id) is None:
            raise missing
        found = await self._find(Conversation, tenant, conversation_id)
        if found is None:
            raise missing
        try:
            with self._asking():
                await self._owed.repay(tenant, found.session_id)
                return found, await self._sessions.get(tenant, found.session_id)
        except SessionNotFound:
            raise missing from None

    async def conversation_to_extend(
        self, tenant: str, conversation_id: str, param: str | None = None
    ) -> tuple[Conversation, Session]:
        """As `conversation`. Raises ApiError 400 too, for one that is full."""
        found, session = await self.conversation(tenant, conversation_id, param)
        check_size(session, self._most, param or "id")
        return found, session

    async def extend(self, conversation: Conversation, session: Session, turns: tuple[Turn, ...]) -> None:
        """Both its parts begin their time anew. Does not raise: the answer has been given by now."""
        try:
            await self._owed.extend(conversation.tenant, session, turns)
            await self._documents.touch(conversation.tenant, conversation.id)
        except SessionConflict as error:
            logger.error("conversation %s: turns are not stored: %s", conversation.id, error)
        except SessionStoreUnavailable as error:
            self._metrics.state_backend("sessions", up=False)
            logger.error("conversation %s: turns are not stored yet: %s", conversation.id, error)
        except SessionNotFound:
            logger.info("conversation %s was deleted while a response ran", conversation.id)

    async def relabel(self, tenant: str, conversation_id: str, metadata: dict[str, str]) -> Conversation:
        found, _ = await self.conversation(tenant, conversation_id)
        relabelled = msgspec.structs.replace(found, metadata=metadata)
        with self._asking():
            await self._documents.put(tenant, found.id, msgspec.msgpack.encode(relabelled))
        return relabelled

    async def add(
        self, tenant: str, conversation_id: str, turns: tuple[Turn, ...]
    ) -> tuple[Conversation, Session]:
        """As `extend`, for a client who waits for it: raises ApiError."""
        found, session = await self.conversation_to_extend(tenant, conversation_id)
        try:
            with self._asking():
                session = await extend(self._sessions, tenant, session, turns)
                await self._documents.touch(tenant, found.id)
        except SessionNotFound:
            raise not_found("conversation", conversation_id) from None
        except SessionConflict as error:
            raise ApiError(
                409, "Too many others add to this conversation just now.", code="conversation_busy"
            ) from error
        return found, session

    async def replace(
        self, conversation: Conversation, session: Session, place: int, before: Turn, after: Turn | None
    ) -> bool:
        """As `SessionStore.replace`; False where that turn has changed since it was read, or has gone.

        Responses that were stored hold their conversation as it was; they are deleted by themselves.
        """
        try:
            with self._asking():
                await self._sessions.replace(conversation.tenant, session.id, place, before, after)
        except (SessionNotFound, SessionConflict):
            return False
        return True

    async def delete_conversation(self, tenant: str, conversation_id: str) -> None:
        found, session = await self.conversation(tenant, conversation_id)
        with self._asking():
            await self._documents.delete(tenant, found.id)
            await self._sessions.delete(tenant, session.id)

    async def sessions(self, tenant: str) -> tuple[str, ...]:
        """The ids of all that a tenant has, the one used last first."""
        with self._asking():
            return await self._sessions.list(tenant)

    async def session(self, tenant: str, session_id: str) -> Session:
        try:
            with self._asking():
                return await self._sessions.get(tenant, session_id)
        except SessionNotFound:
            raise not_found("session", session_id) from None

    async def delete_session(self, tenant: str, session_id: str) -> None:
        try:
            with self._asking():
                await self._sessions.delete(tenant, session_id)
        except SessionNotFound:
            raise not_found("session", session_id) from None

    async def _find(self, kind: type[Document], tenant: str, document_id: str) -> Document | None:
        with self._asking():
            data = await self._documents.get(tenant, document_id)
            if data is None:
                return None
            try:
                found = msgspec.msgpack.decode(data, type=kind)
            except msgspec.DecodeError as error:
                raise SessionStoreUnavailable(f"{kind.__name__}: a damaged document") from error
            if (found.tenant, found.id) != (tenant, document_id):
                raise SessionStoreUnavailable(f"{kind.__name__}: a document of another tenant")
        return found

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except SessionStoreUnavailable as error:
            self._metrics.state_backend("sessions", up=False)
            logger.error("responses: %s", error)
            raise store_unavailable() from error
        self._metrics.state_backend("sessions", up=True)


def not_found(what: str, given: str, param: str | None = None) -> ApiError:
    code = f"{what}_not_found" if param is None else f"{param.removesuffix('_id')}_not_found"
    return ApiError(404, f"There is no {what} {given[:64]!r}.", code=code, param=param)
