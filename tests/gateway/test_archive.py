"""What is remembered of responses and conversations, and what happens when the stores do not play along."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from gateway.archive import Archive, StoredResponse, new_id
from gateway.errors import ApiError
from gateway.metrics import Metrics
from sessions import TURN_SIZE, Turn
from sessions.documents_sqlite import SqliteDocuments
from sessions.retention import always
from sessions.sqlite import SqliteSessions

HELLO = (Turn("user", "Hello"), Turn("assistant", "Hi", tier="7b"))


class Rig:
    """An archive and the stores behind it."""

    def __init__(self, folder: Path, ttl: float = 60.0) -> None:
        self.documents = SqliteDocuments(folder / "responses.sqlite", always(ttl))
        self.sessions = SqliteSessions(folder / "sessions.sqlite", always(ttl))
        self.metrics = Metrics(["7b"], {}, ["acme"])
        self.archive = Archive(self.documents, self.sessions, self.metrics)

    async def close(self) -> None:
        await self.documents.close()
        await self.sessions.close()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path)
    yield made
    await made.close()


def response(response_id: str) -> StoredResponse:
    return StoredResponse(
        tenant="acme", id=response_id, response={"id": response_id, "n": [1, None]}, items=[], turns=HELLO
    )


def test_ids_have_128_bits() -> None:
    assert len({new_id("resp") for _ in range(100)}) == 100
    assert len(new_id("resp").removeprefix("resp_")) * 4 == 128


async def test_a_response_comes_back_as_it_was(rig: Rig) -> None:
    kept = response(new_id("resp"))
    assert await rig.archive.store(kept)
    assert await rig.archive.response("acme", kept.id) == kept


async def test_a_document_of_another_kind_or_tenant_is_never_handed_out(rig: Rig) -> None:
    conversation = await rig.archive.create("acme", {}, ())
    foreign = msgspec.msgpack.encode(response("resp_1"))
    await rig.documents.put("umbrella", "resp_1", foreign)
    await rig.documents.put("acme", "resp_2", foreign)
    await rig.documents.put("acme", "resp_3", b"\xc1")
    for tenant, given in (
        ("acme", conversation.id),
        ("umbrella", "resp_1"),
        ("acme", "resp_2"),
        ("acme", "resp_3"),
    ):
        with pytest.raises(ApiError) as error:
            await rig.archive.response(tenant, given)
        assert error.value.code == "session_store_unavailable"


@pytest.mark.parametrize("given", ["", "conv_", "conv_" + 32 * "g", "sess_" + 32 * "0", "conv_" + 33 * "0"])
async def test_what_is_no_id_of_a_conversation_is_not_found(rig: Rig, given: str) -> None:
    with pytest.raises(ApiError) as error:
        await rig.archive.conversation("acme", given)
    assert (error.value.status, error.value.code) == (404, "conversation_not_found")


async def test_a_session_of_chats_is_no_conversation(rig: Rig) -> None:
    session = await rig.sessions.create("acme")
    with pytest.raises(ApiError) as error:
        await rig.archive.conversation("acme", session.id.replace("sess_", "conv_"))
    assert error.value.status == 404


async def test_two_answers_at_once_lose_none(rig: Rig) -> None:
    made = await rig.archive.create("acme", {"a": "b"}, ())
    conversation, session = await rig.archive.conversation("acme", made.id)
    assert conversation == made
    answers = [(Turn("user", f"{n}"), Turn("assistant", f"{n}!")) for n in range(5)]
    await asyncio.gather(*(rig.archive.extend(conversation, session, answer) for answer in answers))
    _, grown = await rig.archive.conversation("acme", made.id)
    pairs = list(zip(grown.turns[::2], grown.turns[1::2], strict=True))
    assert sorted(pairs, key=lambda pair: pair[0].content) == answers


async def test_both_parts_of_a_conversation_live_as_long(
    tmp_path: Path, patiently: Callable[..., Awaitable[None]]
) -> None:
    async def check(ttl: float) -> None:
        async with AsyncExitStack() as stack:
            rig = Rig(tmp_path, ttl=ttl)
            stack.push_async_callback(rig.close)
            made = await rig.archive.create("acme", {}, ())
            await asyncio.sleep(0.6 * ttl)
            await rig.archive.extend(*await rig.archive.conversation("acme", made.id), HELLO)
            await asyncio.sleep(0.6 * ttl)
            assert (await rig.archive.conversation("acme", made.id))[1].turns == HELLO
            await asyncio.sleep(0.6 * ttl)
            with pytest.raises(ApiError):
                await rig.archive.conversation("acme", made.id)

    await patiently(check, 1.0)


async def test_a_conversation_relabelled_while_a_response_runs_keeps_its_new_label(rig: Rig) -> None:
    found = await rig.archive.conversation("acme", (await rig.archive.create("acme", {"a": "old"}, ())).id)
    await rig.archive.relabel("acme", found[0].id, {"a": "new"})
    await rig.archive.extend(*found, HELLO)
    conversation, session = await rig.archive.conversation("acme", found[0].id)
    assert (conversation.metadata, session.turns) == ({"a": "new"}, HELLO)


async def test_of_two_who_erase_one_turn_the_second_is_told(rig: Rig) -> None:
    found = await rig.archive.conversation("acme", (await rig.archive.create("acme", {}, HELLO)).id)
    assert await rig.archive.replace(*found, 0, HELLO[0], None)
    assert not await rig.archive.replace(*found, 0, HELLO[0], None)
    assert (await rig.archive.conversation("acme", found[0].id))[1].turns == HELLO[1:]


async def test_a_full_conversation_takes_no_further_turn_and_can_still_be_read(rig: Rig) -> None:
    archive = Archive(rig.documents, rig.sessions, rig.metrics, most=2 * TURN_SIZE + 7)
    made = await archive.create("acme", {}, HELLO[:1])
    await archive.add("acme", made.id, HELLO[1:])
    with pytest.raises(ApiError) as error:
        await archive.add("acme", made.id, HELLO)
    assert (error.value.status, error.value.code) == (400, "session_full")
    with pytest.raises(ApiError) as error:
        await archive.conversation_to_extend("acme", made.id, "conversation")
    assert error.value.param == "conversation"
    conversation, session = await archive.conversation("acme", made.id)
    assert session.turns == HELLO
    assert await archive.replace(conversation, session, 0, HELLO[0], None)
    await archive.add("acme", made.id, HELLO[:1])


async def test_a_conversation_deleted_meanwhile_stays_deleted(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    found = await rig.archive.conversation("acme", (await rig.archive.create("acme", {}, HELLO)).id)
    await rig.archive.delete_conversation("acme", found[0].id)
    await rig.archive.extend(*found, HELLO)
    assert "deleted while a response ran" in caplog.text
    with pytest.raises(ApiError):
        await rig.archive.conversation("acme", found[0].id)
    assert await rig.sessions.list("acme") == ()


async def test_a_store_that_is_down_costs_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "responses.sqlite").write_text("This is no database. " * 100)
    rig = Rig(tmp_path)
    assert not await rig.archive.store(response("resp_1"))
    assert "resp_1 is not stored" in caplog.text
    assert b'headrace_state_backend_up{kind="sessions"} 0' in rig.metrics.render()
    with pytest.raises(ApiError) as error:
        await rig.archive.response("acme", "resp_1")
    assert error.value.status == 503
    await rig.close()
