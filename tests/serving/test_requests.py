"""What a request is taken for, by its path, its headers and its key."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.serving.raw_http import error, read

BODY = b'{"model": "7b", "messages": [{"role": "user", "content": "x"}]}'


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "unknown_url"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("GET", "/livez/", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/v1/embeddings", 404, "unknown_url"),
    ],
)
def test_unknown_paths_and_methods(front: Any, method: str, path: str, status: int, code: str) -> None:
    answer = httpx.request(method, front.url + path, json={} if method == "POST" else None)
    assert (answer.status_code, error(answer.content)["code"]) == (status, code)
    assert "location" not in answer.headers
    assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize(
    "media_type", [None, "text/plain", "multipart/form-data; boundary=x", "application/jsonp"]
)
def test_other_media_types(front: Any, media_type: str | None) -> None:
    headers = {} if media_type is None else {"content-type": media_type}
    answer = httpx.post(f"{front.url}/v1/chat/completions", content=BODY, headers=headers)
    assert (answer.status_code, error(answer.content)["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"content-encoding": "gzip"}, "content-encoding"),
        ({"content-encoding": "identity, br"}, "content-encoding"),
        ({"content-type": "application/json; charset=utf-16"}, "content-type"),
        ({"content-type": 'application/json; x=y; Charset="ISO-8859-1"'}, "content-type"),
        ({"content-encoding": "Identity"}, None),
        ({"content-type": 'Application/JSON; Charset="UTF-8"'}, None),
        ({"content-type": "application/json;profile=x"}, None),
    ],
)
def test_how_a_body_is_written(front: Any, headers: dict[str, str], named: str | None) -> None:
    sent = {"content-type": "application/json"} | headers
    answer = httpx.post(f"{front.url}/v1/chat/completions", content=BODY, headers=sent)
    if named is None:
        assert answer.status_code == 200
    else:
        assert answer.status_code == 415 and answer.headers["accept-encoding"] == "identity"
        assert error(answer.content)["message"].startswith(f"{named}: ")


@pytest.mark.parametrize(
    ("given", "kept"),
    [("my-id_1", True), ("", False), ("a b", False), ("x" * 65, False), ("é", False), ("a\tb", False)],
)
def test_request_ids(front: Any, given: str, kept: bool) -> None:
    headers = {b"x-request-id": given.encode()}
    answer = httpx.get(f"{front.url}/livez", headers=headers)
    assert (answer.headers["x-request-id"] == given) is kept
    assert answer.headers["x-request-id"]


def test_a_repeated_request_id_does_not_make_requests_one(front: Any) -> None:
    for _ in range(2):
        httpx.post(
            f"{front.url}/v1/chat/completions",
            content=BODY,
            headers={"content-type": "application/json", "x-request-id": "same"},
        )
    first, second = front.dispatcher.requests
    assert first.id != second.id
    assert first.id.startswith("same-")


def test_headers_reach_the_request(front: Any) -> None:
    def ask(**headers: str) -> httpx.Response:
        headers = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        return httpx.post(f"{front.url}/v1/chat/completions", content=BODY, headers=headers)

    ask(x_session_id="new", x_headrace_timeout_ms="1500", authorization="bearer hr_tenant")
    ask(x_headrace_timeout_ms="99999999")
    request, patient = front.dispatcher.requests
    assert (request.session, request.timeout, request.tenant.name, request.priority) == (
        "new",
        1.5,
        "tenant",
        5,
    )
    assert (patient.session, patient.timeout, patient.tenant.name) == (None, 600.0, "anonymous")
    for wrong in ("0", "-1", "1.5", "soon", "", "9" * 30):
        refused = ask(x_headrace_timeout_ms=wrong)
        assert (refused.status_code, error(refused.content)["param"]) == (400, "x-headrace-timeout-ms")


def test_the_kind_of_a_request_is_the_clients_to_say(front: Any) -> None:
    def ask(**headers: str) -> httpx.Response:
        headers |= {"content-type": "application/json"}
        return httpx.post(f"{front.url}/v1/chat/completions", content=BODY, headers=headers)

    ask(**{"x-headrace-task": "code"})
    ask()
    assert [request.task for request in front.dispatcher.requests] == ["code", None]
    for wrong in ("Code", "", "code, chat"):
        refused = ask(**{"x-headrace-task": wrong})
        told = error(refused.content)
        assert (refused.status_code, told["param"]) == (400, "x-headrace-task")
        assert "code, math, translation" in told["message"]


def test_who_may_have_the_steps_of_the_engine_in_a_trace(front: Any) -> None:
    def ask(key: str, asked: str = "steps") -> httpx.Response:
        headers = {"x-headrace-trace": asked, "authorization": f"Bearer {key}"}
        return httpx.post(f"{front.url}/v1/chat/completions", json=json.loads(BODY), headers=headers)

    refused = ask("hr_keyed")
    assert (refused.status_code, error(refused.content)["code"]) == (403, "not_allowed")
    wrong = ask("hr_admin", "everything")
    assert (wrong.status_code, error(wrong.content)["message"]) == (400, "x-headrace-trace: must be steps")
    assert ask("hr_admin").status_code == ask("unknown").status_code == 200
    assert [request.steps for request in front.dispatcher.requests] == [True, True]


@pytest.mark.parametrize(
    ("key", "tier", "traffic"),
    [
        ("hr_tenant", "auto", "interactive"),
        ("hr_tenant", "flex", "batch"),
        ("hr_nightly", "auto", "batch"),
        ("hr_nightly", "default", "batch"),
    ],
)
def test_nobody_waits_for_flex_requests_nor_for_those_of_a_batch_tenant(
    front: Any, key: str, tier: str, traffic: str
) -> None:
    body = json.loads(BODY) | {"service_tier": tier}
    httpx.post(f"{front.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
    (request,) = front.dispatcher.requests
    assert request.traffic == traffic


def test_probes(front: Any) -> None:
    assert httpx.get(f"{front.url}/livez").text == "ok\n"
    ready = httpx.get(f"{front.url}/readyz")
    assert (ready.status_code, ready.json()["tiers"]) == (200, {"7b": True, "70b": True})
    front.dispatcher.ready = False
    unready = httpx.get(f"{front.url}/readyz")
    assert (unready.status_code, unready.json()["tiers"]) == (503, {"7b": True, "70b": False})
    front.dispatcher.ready = True
    front.leave(patience=0.0)
    draining = httpx.get(f"{front.url}/readyz")
    assert (draining.status_code, draining.json()["draining"]) == (503, True)
    assert httpx.get(f"{front.url}/livez").status_code == 200
    assert httpx.get(f"{front.url}/metrics").status_code == 200


def test_metrics_are_for_the_anonymous_and_for_admins(front: Any, serve: Callable[..., Any]) -> None:
    answer = httpx.get(f"{front.url}/metrics", headers={"accept": "application/openmetrics-text"})
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "up 1" in answer.text
    with serve(anonymous=None) as closed_front:
        for key, status in (("hr_tenant", 403), ("hr_admin", 200)):
            url = f"{closed_front.url}/metrics"
            assert httpx.get(url, headers={"authorization": f"Bearer {key}"}).status_code == status


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic aHI=", "hr_tenant", "Bearer  hr_tenant x", "é"]
)
def test_strange_authorizations_are_no_key(serve: Callable[..., Any], header: str) -> None:
    with serve(anonymous=None) as front, front.connect() as raw:
        raw.sendall(f"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: {header}\r\n\r\n".encode())
        assert read(raw)[0] == 401
