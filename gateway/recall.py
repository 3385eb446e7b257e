"""A request's session: recalled before the work, extended by what was said after it."""

import logging

import msgspec

from backends.prompt import Prompt
from gateway.config import State
from gateway.errors import ApiError
from gateway.metrics import Metrics
from gateway.owed_turns import OwedTurns
from gateway.request import Request
from gateway.turns import check_results, said_in, to_turn
from sessions import (
    Session,
    SessionConflict,
    SessionNotFound,
    SessionStore,
    SessionStoreUnavailable,
    Turn,
    new_session_id,
)
from sessions.window import merge

logger = logging.getLogger(__name__)

NEW = "new"
MOST = State().session_characters


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """`turns`: the whole conversation as it stands, the client's new turns at its end.

    `session` is None where the client wants none; one that is `fresh` is in no store before it is opened.
    """

    session: Session | None = None
    fresh: bool = False
    turns: tuple[Turn, ...] = ()
    new: tuple[Turn, ...] = ()

    def prompt(self, asked: Prompt) -> Prompt:
        """`asked` with the whole conversation in place of what the client sent of it."""
        return said_in(asked, self.turns) if asked.is_conversation else asked


class Memory:
    """The session store, with its errors in the words of the API."""

    def __init__(self, store: SessionStore, metrics: Metrics, most: int = MOST) -> None:
        """`most`: see `session_characters` of the configuration."""
        self._store = store
        self._owed = OwedTurns(store)
        self._most = most
        self._metrics = metrics

    async def recall(self, request: Request) -> Recalled:
        """Raises ApiError 404 for an unknown or foreign id, 503 when the store does not answer, 400 for the result of
        a tool that nobody has called, and for a session that is full."""
        incoming = tuple(to_turn(message) for message in request.prompt.messages)
        if request.session is not None and not request.prompt.is_conversation:
            raise ApiError(400, "x-session-id: a session needs chat messages", param="x-session-id")
        if request.session is None or request.session == NEW:
            check_results((), incoming, request.result_fields)
            session = None if request.session is None else Session(id=new_session_id())
            return Recalled(session=session, fresh=session is not None, turns=incoming, new=incoming)
        try:
            await self._owed.repay(request.tenant.name, request.session)
            session = await self._store.get(request.tenant.name, request.session)
        except SessionNotFound:
            self._metrics.session("unknown")
            raise _not_found() from None
        except SessionStoreUnavailable as error:
            raise self._unavailable() from error
        self._metrics.state_backend("sessions", up=True)
        self._metrics.session("recalled")
        check_size(session, self._most, "x-session-id")
        check_results(session.turns, incoming, request.result_fields)
        new = merge(session.turns, incoming)
        return Recalled(session=session, turns=session.turns + new, new=new)

    async def open(self, tenant: str, session: Session) -> None:
        """Make a fresh session one that can be recalled. Raises ApiError 503."""
        try:
            await self._store.create(tenant, session.id)
        except SessionStoreUnavailable as error:
            raise self._unavailable() from error
        self._metrics.state_backend("sessions", up=True)
        self._metrics.session("opened")

    async def remember(self, request: Request, recalled: Recalled, answer: Turn) -> None:
        """Append what was said; a turn that came first stays, and this one follows it.

        The answer has been given by now, so a failure cannot become the client's error; it is logged, and made good
        before the session is recalled again.
        """
        session = recalled.session
        if session is None:
            return
        try:
            await self._owed.extend(request.tenant.name, session, (*recalled.new, answer))
        except SessionConflict as error:
            logger.error("session: the turns of request %s are not stored: %s", request.id, error)
        except SessionNotFound:
            logger.info("session: deleted while request %s ran", request.id)
        except SessionStoreUnavailable as error:
            self._metrics.state_backend("sessions", up=False)
            logger.error("session: the turns of request %s are not stored yet: %s", request.id, error)

    async def close(self) -> None:
        """Writes down what is still owed, while the store is open."""
        await self._owed.close()

    def _unavailable(self) -> ApiError:
        self._metrics.state_backend("sessions", up=False)
        return store_unavailable()


def check_size(session: Session, most: int, field: str) -> None:
    """Raises ApiError 400 for a session that takes no further turn. The one that fills it may be of any length."""
    if session.size >= most:
        reason = f"{field}: it holds {most} characters or more and takes no further turn; begin a new one"
        raise ApiError(400, reason, code="session_full", param=field)


def store_unavailable() -> ApiError:
    """503: an empty history would be worse."""
    return ApiError(
        503,
        "The session store does not answer.",
        type="server_error",
        code="session_store_unavailable",
        headers={"retry-after": "1"},
    )


def _not_found() -> ApiError:
    return ApiError(404, "x-session-id: no such session", code="session_not_found", param="x-session-id")
