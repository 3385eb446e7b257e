"""Every route of the gateway, found where the router has them: none is open but the two that are meant to be."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.routing import Route

OPEN = {("GET", "/livez"), ("HEAD", "/livez"), ("GET", "/readyz"), ("HEAD", "/readyz")}


@pytest.fixture(scope="module")
def closed(serve: Any) -> Iterator[Any]:
    """A front door without an anonymous tenant."""
    with serve(anonymous=None) as front:
        yield front


def doors(front: Any) -> list[tuple[str, str]]:
    """Methods and paths, ids filled in."""
    routes = [route for route in front.server.config.app.routes if isinstance(route, Route)]
    assert len(routes) == len(front.server.config.app.routes), "something is mounted that is no route"
    filled = [(route.methods or set(), route.path) for route in routes]
    return [
        (method, path.replace("{name:path}", "7b").replace("{id}", "x_1").replace("{item_id}", "y_2"))
        for methods, path in filled
        for method in sorted(methods)
    ]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer"},
        {"authorization": "Basic aHI6aHJfYWRtaW4="},
        {"authorization": "hr_admin"},
        {"authorization": "Bearer ' OR '1'='1", "x-api-key": "hr_admin"},
        {"x-api-key": "hr_admi"},
        {"cookie": "authorization=Bearer hr_admin"},
        {"x-forwarded-for": "127.0.0.1", "x-original-url": "/livez", "x-http-method-override": "GET"},
        {"host": "x/livez?"},
    ],
)
def test_no_route_is_open_without_a_key(closed: Any, headers: dict[str, str]) -> None:
    found = doors(closed)
    assert len(found) > 25
    with httpx.Client(base_url=closed.url) as client:
        for method, path in found:
            if (method, path) in OPEN or (path.startswith("/dashboard") and "Basic" in str(headers)):
                continue  # the page takes the key as a password
            answer = client.request(method, path, headers=headers)
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"]
    assert closed.dispatcher.requests == []


def test_the_open_ones_say_nothing_of_tenants(closed: Any) -> None:
    for _, path in OPEN:
        answer = httpx.get(closed.url + path)
        assert answer.status_code == 200
        assert "tenant" not in answer.text and "http" not in answer.text


@pytest.mark.parametrize("header", ["range", "if-range"])
def test_no_part_of_anything_is_served(closed: Any, header: str) -> None:
    """Nothing here reads a Range, whose handling was quadratic in Starlette's file responses."""
    answer = httpx.get(closed.url + "/livez", headers={header: "bytes=" + ",".join(["0-1"] * 1000)})
    assert (answer.status_code, answer.text) == (200, "ok\n")
