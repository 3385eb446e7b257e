"""The page over real HTTP: who may see it, what it may do, and that it is never in the way."""

import json
import re
import time
from base64 import b64encode
from importlib.resources import files
from typing import Any

import httpx
import pytest

from gateway.dashboard.pages import MAX_VIEWERS

FILES = sorted(file.name for file in files("gateway.dashboard").joinpath("static").iterdir())
PATHS = ["", "/state", "/events", "/requests/r", *(f"/{name}" for name in FILES if name != "index.html")]
ASK: Any = {"model": "auto", "messages": [{"role": "user", "content": "x"}]}


def basic(password: str) -> dict[str, str]:
    return {"authorization": "Basic " + b64encode(f"anybody:{password}".encode()).decode()}


def test_the_page_and_all_that_it_asks_for(front: Any) -> None:
    page = httpx.get(f"{front.url}/dashboard")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    asked = re.findall(r'(?:src|href)="(/[^"]+)"', page.text)
    assert len(asked) >= 3
    for path in asked:
        assert httpx.get(front.url + path).status_code == 200
    imported = {
        name
        for file in FILES
        if file.endswith(".js")
        for name in re.findall(r'from "\./([^"]+)"', httpx.get(f"{front.url}/dashboard/{file}").text)
    }
    assert imported | {"app.js", "index.html", "style.css", "wheel.svg"} == set(FILES)


def test_nothing_comes_from_outside_and_nothing_is_inline(front: Any) -> None:
    with httpx.Client(base_url=front.url) as client:
        for path in ("", *(f"/{name}" for name in FILES if name != "index.html")):
            answer = client.get(f"/dashboard{path}")
            policy = answer.headers["content-security-policy"]
            assert (
                policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "http" not in policy
            )
            assert answer.headers["x-content-type-options"] == "nosniff"
            outside = re.findall(r"https?://[^\s\"']+", answer.text)
            assert set(outside) <= {"http://www.w3.org/2000/svg"}  # a name, not an address
            assert not re.search(r"<script(?![^>]*src=)|\son\w+=|\sstyle=|innerHTML|<style", answer.text)


def test_a_key_is_asked_for_and_only_an_admin_s_opens_it(serve: Any) -> None:
    with serve(anonymous=None) as front, httpx.Client() as client:
        for path in PATHS:
            url = f"{front.url}/dashboard{path}"
            for headers in ({}, basic("hr_wrong"), basic("hr_tenant"), {"authorization": "Bearer hr_tenant"}):
                refused = client.get(url, headers=headers)
                assert refused.status_code == 401, path
                assert refused.headers["www-authenticate"].startswith("Basic "), path
        for path in ("/chat/completions", "/route"):
            refused = client.post(f"{front.url}/dashboard{path}", json=ASK, headers=basic("hr_tenant"))
            assert refused.status_code == 401
        for headers in (basic("hr_admin"), {"authorization": "Bearer hr_admin"}, {"x-api-key": "hr_admin"}):
            assert client.get(f"{front.url}/dashboard", headers=headers).status_code == 200
            assert client.get(f"{front.url}/dashboard/state", headers=headers).status_code == 200


@pytest.mark.parametrize("value", ["Basic", "Basic !!!", "Basic YQ==", "Basic /w==", "Digest x", "Bearer"])
def test_what_is_no_key_is_none(serve: Any, value: str) -> None:
    with serve(anonymous=None) as front:
        refused = httpx.get(f"{front.url}/dashboard", headers={"authorization": value})
        assert refused.status_code == 401
        assert set(refused.json()["error"]) == {"message", "type", "param", "code"}


def test_basic_opens_nothing_else(serve: Any) -> None:
    with serve(anonymous=None) as front:
        refused = httpx.get(f"{front.url}/v1/models", headers=basic("hr_admin"))
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


def test_states_stream_and_the_stream_ends_when_the_gateway_leaves(front: Any) -> None:
    with httpx.stream("GET", f"{front.url}/dashboard/events", timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in answer.iter_lines() if line)
        states = [json.loads(next(lines).removeprefix("data: ")) for _ in range(2)]
        assert states[0]["now"] < states[1]["now"]
        began = time.monotonic()
        front.leave(3600)
        assert list(lines) == []
        assert time.monotonic() - began < 60
    front.eventually(lambda: front.drain.running == 0)


def test_viewers_are_counted_and_bounded(front: Any) -> None:
    with httpx.Client(limits=httpx.Limits(max_connections=None), timeout=60) as client:
        request = client.build_request("GET", f"{front.url}/dashboard/events")
        viewers = [client.send(request, stream=True) for _ in range(MAX_VIEWERS)]
        refused = client.get(f"{front.url}/dashboard/events")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_viewers")
        for viewer in viewers:
            viewer.close()
    front.eventually(lambda: front.drain.running == 0)
    assert httpx.get(f"{front.url}/dashboard/state").status_code == 200


def test_a_prompt_tried_there_goes_the_way_of_all_prompts(front: Any) -> None:
    route = httpx.post(f"{front.url}/dashboard/route", json=ASK)
    assert route.json()["tier"] == "7b"
    answer = httpx.post(f"{front.url}/dashboard/chat/completions", json={**ASK, "stream": True})
    assert answer.text.endswith("data: [DONE]\n\n")
    assert answer.headers["x-headrace-tier"] == "7b"
    front.eventually(lambda: [exchange.endpoint for exchange in front.exchanges] == ["route", "chat"])
    record = httpx.get(f"{front.url}/dashboard/requests/{answer.headers['x-request-id']}").json()
    assert (record["endpoint"], record["tier"], record["status"]) == ("chat", "7b", 200)
    (brief,) = httpx.get(f"{front.url}/dashboard/state").json()["latest"]
    assert brief["id"] == record["id"]


def test_a_request_nobody_knows(front: Any) -> None:
    unknown = httpx.get(f"{front.url}/dashboard/requests/req_0")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "request_not_found")


@pytest.mark.parametrize(
    "path", ["/dashboard/", "/dashboard/../metrics", "/dashboard/%2e%2e/pages.py", "/dashboardx"]
)
def test_no_other_path_is_the_page_s(front: Any, path: str) -> None:
    with front.connect() as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 404")
