"""What the file of documents promises beyond the conformance suite."""

import sqlite3
from pathlib import Path

from sessions.documents_sqlite import SqliteDocuments
from sessions.retention import always


async def test_each_tenants_documents_go_at_their_own_time(tmp_path: Path) -> None:
    now, lives = 1000.0, {"acme": 10.0, "umbrella": 100.0}
    documents = SqliteDocuments(tmp_path / "d.sqlite", lives.__getitem__, clock=lambda: now)
    for tenant in lives:
        await documents.put(tenant, "resp_1", b"one")
    now = 1050.0
    assert await documents.get("acme", "resp_1") is None
    assert await documents.get("umbrella", "resp_1") == b"one"
    await documents.put("umbrella", "resp_2", b"two")
    await documents.close()
    connection = sqlite3.connect(tmp_path / "d.sqlite")
    assert connection.execute("SELECT tenant FROM document").fetchall() == [("umbrella",)] * 2
    connection.close()


async def test_a_file_of_the_first_version_keeps_its_documents(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "d.sqlite") as older:
        older.executescript(
            "CREATE TABLE document (tenant TEXT NOT NULL, id TEXT NOT NULL, data BLOB NOT NULL,"
            "stored REAL NOT NULL, PRIMARY KEY (tenant, id));"
            "CREATE INDEX document_stored ON document (stored);"
            "INSERT INTO document VALUES ('acme', 'resp_1', x'31', 1000.0); PRAGMA user_version=1"
        )
    older.close()
    now = 1000.0 + 30 * 24 * 3600 - 1
    documents = SqliteDocuments(tmp_path / "d.sqlite", always(10.0), clock=lambda: now)
    assert await documents.get("acme", "resp_1") == b"1"
    now += 1
    assert await documents.get("acme", "resp_1") is None
    await documents.close()
