"""What every store of documents promises."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from sessions import SessionStoreUnavailable
from sessions.connection import connect
from sessions.documents import DocumentStore
from sessions.documents_redis import RedisDocuments
from sessions.documents_sqlite import SqliteDocuments
from sessions.retention import always

Open = Callable[..., DocumentStore]


@pytest.fixture(params=["sqlite", "redis"])
def open_documents(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """`open_documents(ttl=seconds)`; all that one test opens hold the same documents."""
    if request.param == "sqlite":
        return lambda ttl=60.0: SqliteDocuments(tmp_path / "responses.sqlite", always(ttl))
    server: Any = request.getfixturevalue("redis")
    return lambda ttl=60.0: RedisDocuments(connect(server.url, 10.0), always(ttl))


@pytest.fixture
async def documents(open_documents: Open) -> AsyncIterator[DocumentStore]:
    store = open_documents()
    yield store
    await store.close()


async def test_what_was_put_comes_back_until_it_is_replaced_or_deleted(documents: DocumentStore) -> None:
    await documents.put("acme", "resp_1", b"\0one\xff")
    await documents.put("acme", "resp_2", b"two")
    assert await documents.get("acme", "resp_1") == b"\0one\xff"
    await documents.put("acme", "resp_1", b"")
    assert await documents.get("acme", "resp_1") == b""
    assert await documents.delete("acme", "resp_1")
    assert await documents.get("acme", "resp_1") is None
    assert not await documents.delete("acme", "resp_1")
    assert await documents.get("acme", "resp_2") == b"two"


@pytest.mark.parametrize("document_id", ["resp_1", "", "'; DROP TABLE document; --", "a\0b", "{umbrella}:x"])
async def test_a_foreign_id_is_like_an_unknown_one(documents: DocumentStore, document_id: str) -> None:
    assert await documents.get("umbrella", document_id) is None
    await documents.put("acme", document_id, b"secret")
    assert await documents.get("umbrella", document_id) is None
    assert not await documents.delete("umbrella", document_id)
    assert await documents.get("acme", document_id) == b"secret"


async def test_what_is_touched_begins_its_time_anew_and_stays_what_it_is(
    open_documents: Open, patiently: Callable[..., Awaitable[None]]
) -> None:
    async def check(ttl: float) -> None:
        async with AsyncExitStack() as stack:
            store = open_documents(ttl=ttl)
            stack.push_async_callback(store.close)
            await store.put("acme", "resp_1", b"one")
            for _ in range(3):
                await asyncio.sleep(0.5 * ttl)
                await store.touch("acme", "resp_1")
                await store.touch("umbrella", "resp_1")
            assert await store.get("acme", "resp_1") == b"one"
            assert await store.get("umbrella", "resp_1") is None
            await asyncio.sleep(1.3 * ttl)
            await store.touch("acme", "resp_1")
            assert await store.get("acme", "resp_1") is None

    await patiently(check, 0.6)


async def test_another_gateway_sees_the_same(open_documents: Open) -> None:
    one, other = open_documents(), open_documents()
    await one.put("acme", "resp_1", b"one")
    await one.close()
    assert await other.get("acme", "resp_1") == b"one"
    await other.close()


async def test_a_document_is_forgotten_its_time_after_it_was_put(
    open_documents: Open, patiently: Callable[..., Awaitable[None]]
) -> None:
    async def check(ttl: float) -> None:
        async with AsyncExitStack() as stack:
            documents = open_documents(ttl=ttl)
            stack.push_async_callback(documents.close)
            await documents.put("acme", "resp_1", b"one")
            await asyncio.sleep(0.6 * ttl)
            await documents.put("acme", "resp_1", b"again")
            await asyncio.sleep(0.6 * ttl)
            assert await documents.get("acme", "resp_1") == b"again"
            await asyncio.sleep(0.6 * ttl)
            assert await documents.get("acme", "resp_1") is None
            assert not await documents.delete("acme", "resp_1")

    await patiently(check, 1.0)


async def test_a_large_document_comes_back_whole(documents: DocumentStore) -> None:
    data = bytes(range(256)) * 8192
    await documents.put("acme", "resp_1", data)
    assert await documents.get("acme", "resp_1") == data


async def test_a_store_that_is_down_says_so(tmp_path: Path, mortal_redis: Any) -> None:
    (tmp_path / "file").write_text("not a folder")
    mortal_redis.kill()
    for documents in (
        SqliteDocuments(tmp_path / "file" / "responses.sqlite", always(60.0)),
        RedisDocuments(connect(mortal_redis.url, 0.5), always(60.0)),
    ):
        for attempt in (
            documents.put("acme", "resp_1", b""),
            documents.get("acme", "resp_1"),
            documents.delete("acme", "resp_1"),
        ):
            with pytest.raises(SessionStoreUnavailable):
                await attempt
        await documents.close()
