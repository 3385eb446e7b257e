"""What a newcomer does with a running gateway, through the unmodified `openai` client."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.configfile import load_config
from gateway.tenants import new_key, server_secret

pytestmark = pytest.mark.models

ASK: Any = [{"role": "user", "content": "What is the capital of France?"}]
LONG: Any = [{"role": "user", "content": "Write a very long story about a mill."}]
FLOOD: Any = [{"role": "user", "content": "word " * 20_000}]
ENDLESS: Any = {"ignore_eos": True}


@pytest.fixture(scope="module")
def client(serving: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{serving.url}/v1", api_key="any", max_retries=0, timeout=60) as made:
        yield made


def test_a_chat(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="auto", messages=ASK, temperature=0, max_tokens=24
    )
    answer = raw.parse()
    assert "Paris" in str(answer.choices[0].message.content)
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert raw.headers["x-headrace-tier"] == answer.model == "7b"
    assert raw.headers["x-headrace-reason"].startswith("7b: p=")
    assert raw.headers["x-request-id"]


def test_a_stream_says_the_same_as_the_whole(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="7b", messages=ASK, temperature=0, max_tokens=40)
    stream = client.chat.completions.create(
        model="7b", messages=ASK, temperature=0, max_tokens=40, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) > 3
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_completion(client: OpenAI) -> None:
    answer = client.completions.create(
        model="70b", prompt="def add(a, b):\n    return", temperature=0, max_tokens=5
    )
    assert "a + b" in answer.choices[0].text


def test_a_seed_gives_the_same_text_alone_and_among_others(client: OpenAI) -> None:
    def ask(seed: int) -> str:
        answer = client.chat.completions.create(
            model="7b", messages=LONG, temperature=0.9, top_p=0.95, seed=seed, max_tokens=40
        )
        return str(answer.choices[0].message.content)

    alone = ask(7)
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, [7, 1, 2, 3, 4, 5, 6, 7]))
    assert together[0] == together[-1] == alone
    assert len(set(together)) == 7


def test_a_stop_string_is_not_in_the_text(client: OpenAI) -> None:
    numbers: Any = [{"role": "user", "content": "Count: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10. Repeat exactly."}]
    free = client.chat.completions.create(model="7b", messages=numbers, temperature=0, max_tokens=40)
    text = str(free.choices[0].message.content)
    stop = text[4:9]
    stopped = client.chat.completions.create(
        model="7b", messages=numbers, temperature=0, max_tokens=40, stop=[stop], stream=True
    )
    chunks = list(stopped)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == text[: text.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_the_second_call_finds_its_prefix_cached(client: OpenAI) -> None:
    story: Any = [{"role": "user", "content": "The mill stands by the river and turns. " * 20 + "Why?"}]
    first = client.chat.completions.create(model="70b", messages=story, max_tokens=1)
    raw = client.chat.completions.with_raw_response.create(model="70b", messages=story, max_tokens=1)
    second = raw.parse()
    assert first.usage is not None and first.usage.prompt_tokens_details is not None
    assert second.usage is not None and second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens or 0
    assert cached > (first.usage.prompt_tokens_details.cached_tokens or 0)
    assert second.usage.prompt_tokens - 17 <= cached < second.usage.prompt_tokens
    assert (
        f"{cached} of {second.usage.prompt_tokens} prompt tokens cached" in raw.headers["x-headrace-reason"]
    )


def test_a_session_remembers(client: OpenAI, serving: Any) -> None:
    first = client.chat.completions.with_raw_response.create(
        model="7b", messages=ASK, max_tokens=16, temperature=0, extra_headers={"x-session-id": "new"}
    )
    session = first.headers["x-session-id"]
    again: Any = [{"role": "user", "content": "And of Spain?"}]
    second = client.chat.completions.with_raw_response.create(
        model="7b", messages=again, max_tokens=16, temperature=0, extra_headers={"x-session-id": session}
    )
    spoken = [*ASK, {"role": "assistant", "content": first.parse().choices[0].message.content}, *again]
    plain = client.chat.completions.create(model="7b", messages=spoken, max_tokens=16, temperature=0)
    answer = second.parse()
    assert answer.choices[0].message.content == plain.choices[0].message.content
    assert answer.usage is not None and plain.usage is not None
    assert answer.usage.prompt_tokens == plain.usage.prompt_tokens
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(
            model="7b", messages=again, extra_headers={"x-session-id": "sess_" + "0" * 32}
        )
    assert unknown.value.code == "session_not_found"


@pytest.mark.parametrize(
    ("change", "error", "code", "param"),
    [
        ({"model": "gpt-5"}, openai.NotFoundError, "model_not_found", "model"),
        ({"messages": []}, openai.BadRequestError, None, "messages"),
        ({"temperature": 3}, openai.BadRequestError, None, "temperature"),
        ({"max_tokens": 100_000}, openai.BadRequestError, "context_length_exceeded", None),
        ({"messages": FLOOD}, openai.BadRequestError, "context_length_exceeded", None),
        ({"extra_body": {"cache_salt": "victim"}}, openai.BadRequestError, None, "cache_salt"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, openai.BadRequestError, None, "tools"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(
    client: OpenAI,
    change: dict[str, Any],
    error: type[openai.APIStatusError],
    code: str | None,
    param: str | None,
) -> None:
    with pytest.raises(error) as refused:
        client.chat.completions.create(**{"model": "7b", "messages": ASK, "max_tokens": 1, **change})
    assert code is None or refused.value.code == code
    assert param is None or refused.value.param == param


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[" * 100_000, 400),
        (b'{"model": "7b", "messages": [{"role": "user", "content": "\xff"}]}', 400),
        (b'{"model": NaN}', 400),
        (b'{"model": "7b", "model": "7b"}', 400),
        (b'{"pad": "' + b"x" * 20_000_000 + b'"}', 413),
    ],
)
def test_bodies_that_are_no_request(serving: Any, body: bytes, status: int) -> None:
    answer = httpx.post(
        f"{serving.url}/v1/chat/completions",
        content=body,
        headers={"content-type": "application/json"},
        timeout=30,
    )
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text


def test_limits_of_a_tenant(
    tmp_path: Path, start_serving: Callable[..., Any], write_config: Callable[..., Path]
) -> None:
    """Two requests a minute, a third is refused with the wait; the openai client sees its own exception."""
    key, stored = new_key(server_secret(load_config(write_config(tmp_path))))
    running = start_serving("--config", str(write_config(tmp_path, key=(stored.prefix, stored.digest))))
    try:
        with OpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0) as client:
            for left in ("1", "0"):
                raw = client.chat.completions.with_raw_response.create(model="7b", messages=ASK, max_tokens=1)
                assert raw.headers["x-ratelimit-remaining-requests"] == left
            with pytest.raises(openai.RateLimitError) as refused:
                client.chat.completions.create(model="7b", messages=ASK, max_tokens=1)
        assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
    finally:
        assert running.stop(signal.SIGTERM) == 0


def idle(serving: Any) -> bool:
    return bool(
        serving.metric("vllm:num_requests_running") == 0
        and serving.metric("vllm:num_requests_waiting") == 0
        and serving.metric("vllm:kv_cache_usage_perc") == 0
    )


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_the_engine(serving: Any, stream: bool) -> None:
    body = json.dumps(
        {"model": "7b", "messages": LONG, "max_tokens": 1500, "stream": stream, "ignore_eos": True}
    ).encode()
    with socket.create_connection(("127.0.0.1", serving.port)) as raw:
        raw.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )
        serving.eventually(lambda: serving.metric("vllm:num_requests_running", engine="7b/0") == 1)
    serving.eventually(lambda: idle(serving))


def test_an_engine_killed_in_mid_stream(client: OpenAI, serving: Any) -> None:
    stream = client.chat.completions.create(
        model="7b", messages=LONG, max_tokens=1500, stream=True, extra_body=ENDLESS
    )
    pieces = []
    with pytest.raises(openai.APIError) as broken:
        for chunk in stream:
            pieces.append(chunk)
            if len(pieces) == 5:
                os.kill(serving.engine(0), signal.SIGKILL)
    assert len(pieces) >= 5
    assert broken.value.code == "engine_died"
    # the other tier takes over at once; who wants the dead one waits until it is back
    raw = client.chat.completions.with_raw_response.create(model="auto", messages=ASK, max_tokens=4)
    assert raw.headers["x-headrace-tier"] == "70b"
    assert client.chat.completions.create(model="7b", messages=ASK, max_tokens=4).model == "7b"
    assert serving.metric("headrace_engine_restarts_total") == 1


def test_an_idle_engine_uses_no_cpu(serving: Any) -> None:
    serving.eventually(lambda: idle(serving))
    time.sleep(0.5)

    def ticks() -> int:
        stats = [
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in serving.children()
        ]
        return sum(int(stat[11]) + int(stat[12]) for stat in stats)

    before = ticks()
    time.sleep(2)
    assert ticks() - before <= 4  # of 10 ms, both engines together


def test_metrics_are_in_the_old_text_format(serving: Any) -> None:
    answer = httpx.get(f"{serving.url}/metrics", headers={"accept": "application/openmetrics-text"})
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "vllm:generation_tokens_total{" in answer.text
    assert serving.metric("vllm:generation_tokens_total", engine="7b/0") > 0
    assert serving.metric("headrace_requests_total", endpoint="chat", status="200") > 0


def test_one_trace_from_the_client_to_the_engine(
    tmp_path: Path, start_serving: Callable[..., Any], write_config: Callable[..., Path]
) -> None:
    received: list[ExportTraceServiceRequest] = []
    measured: list[ExportMetricsServiceRequest] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces":
                received.append(ExportTraceServiceRequest.FromString(body))
            else:
                measured.append(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{collector.server_port}"
        running = start_serving("--config", str(write_config(tmp_path, collector=endpoint)))
        try:
            trace = "0af7651916cd43dd8448eb211c80319c"
            answer = httpx.post(
                f"{running.url}/v1/chat/completions",
                json={"model": "auto", "messages": ASK, "max_tokens": 4},
                headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01", "x-headrace-trace": "steps"},
                timeout=60,
            )
            assert answer.status_code == 200
        finally:
            assert running.stop() == 0
        collector.shutdown()
    spans = [
        span
        for export in received
        for resource in export.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if span.trace_id.hex() == trace
    ]
    names = {span.name for span in spans}
    assert names >= {
        "POST /v1/chat/completions", "headrace.auth", "headrace.recall", "headrace.encode", "headrace.prefix",
        "headrace.reserve", "headrace.classify", "headrace.route", "headrace.settle", "chat 7b", "engine.queue",
        "engine.prefill", "engine.decode", "engine.step",
    }  # fmt: skip
    by_name = {span.name: span for span in spans}
    assert by_name["POST /v1/chat/completions"].parent_span_id.hex() == "b7ad6b7169203331"
    assert by_name["engine.decode"].parent_span_id == by_name["chat 7b"].span_id
    steps = [span for span in spans if span.name == "engine.step"]
    assert len(steps) >= 4 and {span.parent_span_id for span in steps} == {
        by_name["engine.prefill"].span_id,
        by_name["engine.decode"].span_id,
    }
    names = {
        metric.name
        for resource in measured[-1].resource_metrics
        for metric in resource.scope_metrics[0].metrics
    }
    assert "gen_ai.server.time_to_first_token" in names and "gen_ai.client.token.usage" in names
    assert not any(b"capital of France" in export.SerializeToString() for export in received)


def test_ctrl_c_leaves_nothing(
    tmp_path: Path, start_serving: Callable[..., Any], write_config: Callable[..., Path]
) -> None:
    running = start_serving("--config", str(write_config(tmp_path)))
    engines = running.children()
    assert len(engines) == 2
    # a request is running meanwhile
    body: Any = {"model": "7b", "messages": LONG, "max_tokens": 1500, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{running.url}/v1/chat/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        started = time.monotonic()
        running.process.send_signal(signal.SIGINT)
        rest = "\n".join(lines)
        assert running.wait(60) == 0
    assert time.monotonic() - started < 30
    assert '"code":"draining"' in rest.replace(" ", "")
    assert "[DONE]" not in rest
    assert not any(Path(f"/proc/{pid}").exists() for pid in engines)
