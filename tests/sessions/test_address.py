"""URLs of a Redis that nobody should be left alone with."""

import pytest

from sessions.address import fault_of
from sessions.connection import connect


@pytest.mark.parametrize(
    "url",
    [
        "redis://h", "redis://h:1/", "redis://u:p%40@h:1/15", "redis://h?db=3&protocol=3&client_name=a",
        "unix:///run/redis.sock?db=2", "rediss://h/0?ssl_cert_reqs=none&ssl_ca_certs=/a.pem",
    ],
)  # fmt: skip
async def test_what_is_right_makes_a_connection(url: str) -> None:
    assert fault_of(url) is None
    client = connect(url, None)
    client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    await client.aclose()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://:secret@h?timeout=20", "the option timeout is not known here; known are client_name, db, protocol"),
        ("redis://h?patience=1", "the option patience is not known"),
        ("redis://h?decode_responses=true", "the option decode_responses is not known"),
        ("redis://h?ssl_cert_reqs=none", "the option ssl_cert_reqs is not known here (only with rediss://)"),
        ("redis://:secret@h/abc", "the database is a number"),
        ("redis://h?db=x", "the database is a number"),
        ("redis://h?protocol=4", "the protocol is 2 or 3"),
        ("redis://h:port/0", "is no URL: Port could not be cast"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_without_the_password(url: str, told: str) -> None:
    found = fault_of(url)
    assert found is not None and found.startswith(told) and "secret" not in found
