"""How turns are stored: one record per append, and in each the tenant and the session it belongs to.

A version counts the appends, so record 0, made with the session, has no turns.
"""

from collections.abc import Iterable

import msgspec

from sessions import Session, SessionStoreUnavailable, Turn


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one append added."""

    tenant: str
    session: str
    turns: tuple[Turn, ...] = ()


def encode(tenant: str, session_id: str, turns: tuple[Turn, ...]) -> bytes:
    return msgspec.msgpack.encode(Record(tenant, session_id, turns))


def decode(tenant: str, session_id: str, records: Iterable[bytes]) -> Session:
    """The session that these records make up. Raises SessionStoreUnavailable when one is damaged or belongs elsewhere.

    A store that hands out another tenant's words is broken, whatever else it says: nothing of its answer is used.
    """
    turns: list[Turn] = []
    version = -1
    for data in records:
        try:
            record = msgspec.msgpack.decode(data, type=Record)
        except msgspec.DecodeError as error:
            raise SessionStoreUnavailable(f"session {session_id}: a damaged record") from error
        if (record.tenant, record.session) != (tenant, session_id):
            raise SessionStoreUnavailable(f"session {session_id}: a record of another session")
        turns.extend(record.turns)
        version += 1
    return Session(id=session_id, turns=tuple(turns), version=version)
