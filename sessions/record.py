"""How turns are stored: one record per append, and in each the tenant and the session it belongs to.

A version counts the appends, so record 0, made with the session, has no turns. A turn that was erased leaves its place.
"""

from collections.abc import Iterable, Sequence

import msgspec

from sessions import Session, SessionConflict, SessionDamaged, Turn


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one append added."""

    tenant: str
    session: str
    turns: tuple[Turn | None, ...] = ()


def encode(tenant: str, session_id: str, turns: tuple[Turn | None, ...]) -> bytes:
    return msgspec.msgpack.encode(Record(tenant, session_id, turns))


def decode(tenant: str, session_id: str, records: Iterable[bytes]) -> Session:
    """The session that these records make up. Raises SessionDamaged when one is damaged or belongs elsewhere.

    A store that hands out another tenant's words is broken, whatever else it says: nothing of its answer is used.
    """
    places: list[Turn | None] = []
    version = -1
    for data in records:
        places.extend(_read(tenant, session_id, data))
        version += 1
    return Session(
        id=session_id,
        turns=tuple(turn for turn in places if turn is not None),
        version=version,
        erased=tuple(place for place, turn in enumerate(places) if turn is None),
    )


def replaced(
    tenant: str, session_id: str, records: Sequence[bytes], place: int, before: Turn, after: Turn | None
) -> tuple[int, bytes]:
    """Which record has the turn of this place, and that record with `after` instead.

    Raises SessionConflict where that turn is not `before`, SessionDamaged as `decode`.
    """
    for number, data in enumerate(records):
        turns = _read(tenant, session_id, data)
        if place < len(turns):
            if turns[place] != before:
                break
            return number, encode(tenant, session_id, (*turns[:place], after, *turns[place + 1 :]))
        place -= len(turns)
    raise SessionConflict(f"session {session_id} has another turn at that place")


def _read(tenant: str, session_id: str, data: bytes) -> tuple[Turn | None, ...]:
    try:
        record = msgspec.msgpack.decode(data, type=Record)
    except msgspec.DecodeError as error:
        raise SessionDamaged(f"session {session_id}: a damaged record") from error
    if (record.tenant, record.session) != (tenant, session_id):
        raise SessionDamaged(f"session {session_id}: a record of another session")
    return record.turns
