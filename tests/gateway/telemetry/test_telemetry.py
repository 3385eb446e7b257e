"""Traces over real OTLP/HTTP to a collector in a thread."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from backends.backend import DeadlineExceeded, Delta, Generation, Overloaded, Sampling, Timings, Usage
from backends.prompt import ChatMessage, Prompt
from backends.wire import StepRun
from gateway.cascade import DEADLINE_GRACE, within
from gateway.config import Telemetry
from gateway.errors import ApiError
from gateway.ledger import ESCALATED, Entry, Stage
from gateway.span_export import FLUSH_TIMEOUT
from gateway.telemetry import Traces
from gateway.tiers import Replica

CANARY = "the canary sings"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
USAGE = Usage(prompt_tokens=7, completion_tokens=2, cached_tokens=5)
WHOLE = [
    Delta(text=CANARY, tokens=1),
    Delta(
        text="!",
        tokens=1,
        finish="stop",
        usage=USAGE,
        timings=Timings(arrived=1000.0, scheduled=1000.5, first_token=1001.5, finished=1003.0),
    ),
]


@dataclass
class Scripted:
    """A backend that plays its deltas, then raises or hangs if it is told to."""

    deltas: list[Delta]
    error: Exception | None = None
    hangs: bool = False
    seen: list[Generation] = field(default_factory=list)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    name: str = "7b/0"
    tokenizer: None = None
    context_length: int = 100
    available: bool = True
    takes_tools: bool = True
    recovering: bool = False
    tripped: bool = False
    in_flight: int = 0

    def refusal(self, prompt: Prompt, sampling: Sampling) -> None:
        """It refuses nothing."""

    async def stream(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        self.seen.append(generation)
        for delta in self.deltas:
            yield delta
        if self.error is not None:
            raise self.error
        if self.hangs:
            self.hanging.set()
            await asyncio.sleep(60)

    async def start(self) -> None: ...

    async def warm(self, generation: Generation) -> bool:
        return False

    async def close(self) -> None: ...


def generation(**options: Any) -> Generation:
    sampling = Sampling(max_tokens=9, temperature=0.5, top_k=3, seed=2**64 - 1, stop=(CANARY,))
    prompt = Prompt(messages=(ChatMessage("user", CANARY),))
    fields: dict[str, Any] = {"id": "r1", "prompt": prompt, "ids": [1], "sampling": sampling} | options
    return Generation(**fields)


def entry() -> Entry:
    return Entry(tier="7b", replica="7b/0")


async def run(traces: Traces, backend: Scripted, **options: Any) -> list[Delta]:
    async with aclosing(following(traces, entry(), backend, **options)) as deltas:
        return [delta async for delta in deltas]


def following(
    traces: Traces, entry: Entry, backend: Scripted, seconds: float = 60.0, **options: Any
) -> AsyncGenerator[Delta, None]:
    """As a cascade reads an attempt."""
    deadline = asyncio.get_running_loop().time() + seconds
    return within(traces.attempt(entry, Replica(backend, "small"), generation(**options)), deadline)


def attributes(span: Span) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in span.attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, str(kind))


async def test_one_trace_from_the_client_s_call_to_the_engine_s_steps(collector: Any) -> None:
    traces = Traces(Telemetry(otlp_endpoint=collector.url + "/", service_name="gate"))
    backend = Scripted(WHOLE)
    headers = {"traceparent": PARENT, "baggage": "user=bob"}
    with traces.request("POST", "/v1/chat/completions", headers) as request:
        with traces.span("headrace.reserve", tokens=12):
            pass
        with traces.span("headrace.route") as route:
            route.set_attribute("headrace.route.tier", "7b")
        assert [delta.text for delta in await run(traces, backend)] == [CANARY, "!"]
        request.answered(200)
        assert request.trace_id == PARENT.split("-")[1]
    await traces.close()

    spans = collector.spans()
    assert set(spans) == {
        "POST /v1/chat/completions", "headrace.reserve", "headrace.route", "chat 7b",
        "engine.queue", "engine.prefill", "engine.decode",
    }  # fmt: skip
    assert {span.trace_id.hex() for span in spans.values()} == {PARENT.split("-")[1]}
    root, attempt = spans["POST /v1/chat/completions"], spans["chat 7b"]
    assert root.parent_span_id.hex() == PARENT.split("-")[2]
    assert {spans[name].parent_span_id for name in ("headrace.reserve", "headrace.route", "chat 7b")} == {
        root.span_id
    }
    stages = [spans[f"engine.{name}"] for name in ("queue", "prefill", "decode")]
    assert {stage.parent_span_id for stage in stages} == {attempt.span_id}
    assert [stage.start_time_unix_nano / 1e9 for stage in stages] == [1000.0, 1000.5, 1001.5]
    assert [stage.end_time_unix_nano / 1e9 for stage in stages] == [1000.5, 1001.5, 1003.0]
    assert attributes(root)["http.response.status_code"] == 200
    assert attributes(spans["headrace.reserve"]) == {"headrace.tokens": 12}
    assert b"gate" in b"".join(collector.bodies)
    # The backend continues the attempt's trace, and learns nothing else.
    assert backend.seen[0].traceparent is not None
    assert backend.seen[0].traceparent.split("-")[1:3] == [attempt.trace_id.hex(), attempt.span_id.hex()]
    for secret in (CANARY, "bob"):
        assert secret.encode() not in b"".join(collector.bodies)


@pytest.mark.parametrize(
    ("opt_in", "provider", "cached"),
    [
        ("", "gen_ai.system", "headrace.cached_tokens"),
        ("http,gen_ai_latest_experimental", "gen_ai.provider.name", "gen_ai.usage.cache_read.input_tokens"),
    ],
)
async def test_the_attributes_of_an_attempt(
    collector: Any, monkeypatch: pytest.MonkeyPatch, opt_in: str, provider: str, cached: str
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opt_in)
    traces = Traces(Telemetry(otlp_endpoint=collector.url))
    await run(traces, Scripted(WHOLE))
    await run(traces, Scripted(WHOLE), prompt=Prompt(text=CANARY))
    await traces.close()
    said = attributes(collector.spans()["chat 7b"])
    first = said.pop("headrace.time_to_first_chunk", None) or said.pop("gen_ai.response.time_to_first_chunk")
    assert 0 < first < 5
    assert said == {
        "gen_ai.operation.name": "chat", provider: "headrace", "gen_ai.request.model": "7b",
        "gen_ai.response.model": "small", "gen_ai.response.id": "r1", "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": 1.0, "gen_ai.request.top_k": 3,
        "gen_ai.response.finish_reasons": ["stop"], "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 2, cached: 5, "headrace.tier": "7b", "headrace.replica": "7b/0",
        "headrace.complete": True, "headrace.outcome": "answered",
    }  # fmt: skip
    assert attributes(collector.spans()["text_completion 7b"])["gen_ai.operation.name"] == "text_completion"


async def test_an_error_is_told_by_its_code_and_ends_every_span(collector: Any) -> None:
    traces = Traces(Telemetry(otlp_endpoint=collector.url))
    with pytest.raises(Overloaded):
        with traces.request("POST", "/v1/completions", {}):
            await run(traces, Scripted(WHOLE[:1], error=Overloaded(CANARY)))
    with pytest.raises(ApiError):
        with traces.span("headrace.recall"):
            raise ApiError(404, CANARY, code="session_not_found")
    with pytest.raises(ZeroDivisionError):
        with traces.span("headrace.classify"):
            raise ZeroDivisionError(CANARY)
    await traces.close()
    spans = collector.spans()
    errors = {name: attributes(span)["error.type"] for name, span in spans.items()}
    assert attributes(spans["chat 7b"])["headrace.outcome"] == "server_is_overloaded"
    assert errors == {
        "POST /v1/completions": "server_is_overloaded",
        "chat 7b": "server_is_overloaded",
        "headrace.recall": "session_not_found",
        "headrace.classify": "ZeroDivisionError",
    }
    assert all(span.status.code == Status.STATUS_CODE_ERROR for span in spans.values())
    assert CANARY.encode() not in b"".join(collector.bodies)


@pytest.mark.parametrize(
    ("status", "code", "bad"),
    [(200, None, False), (404, "model_not_found", False), (503, "x", True), (200, "engine_died", True)],
)
async def test_which_answers_are_errors_of_the_server(
    collector: Any, status: int, code: str | None, bad: bool
) -> None:
    traces = Traces(Telemetry(otlp_endpoint=collector.url))
    with traces.request("GET", "/v1/models", {}) as request:
        request.answered(status, code)
    await traces.close()
    span = collector.spans()["GET /v1/models"]
    assert (span.status.code == Status.STATUS_CODE_ERROR) == bad
    assert attributes(span).get("error.type") == code


async def test_spans_end_when_a_generator_is_closed_early(collector: Any) -> None:
    """From another task, too: a generator's span is never the current one of whoever pulls it."""
    traces = Traces(Telemetry(otlp_endpoint=collector.url))
    with traces.request("POST", "/v1/chat/completions", {}):
        deltas = following(traces, entry(), Scripted(WHOLE[:1], hangs=True))
        await anext(deltas)
        await asyncio.create_task(_close(deltas))
    await traces.close()
    spans = collector.spans()
    assert set(spans) == {"POST /v1/chat/completions", "chat 7b"}
    assert spans["chat 7b"].status.code == Status.STATUS_CODE_UNSET
    assert attributes(spans["chat 7b"])["headrace.complete"] is False
    assert attributes(spans["chat 7b"])["headrace.outcome"] == "aborted"
    assert spans["chat 7b"].parent_span_id == spans["POST /v1/chat/completions"].span_id


async def test_an_attempt_that_runs_out_of_time_has_failed(collector: Any) -> None:
    traces = Traces(Telemetry(otlp_endpoint=collector.url))
    with pytest.raises(DeadlineExceeded):
        async for _ in following(traces, entry(), Scripted([], hangs=True), 0.01 - DEADLINE_GRACE):
            pass
    await traces.close()
    span = collector.spans()["chat 7b"]
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert attributes(span)["headrace.outcome"] == attributes(span)["error.type"] == "deadline_exceeded"


@pytest.mark.parametrize(
    ("got_to", "stages"),
    [
        ({}, {"queue": 3}),
        ({"scheduled": 1000.5}, {"queue": 0.5, "prefill": 2.5}),
        ({"scheduled": 1000.5, "first_token": 1001.5}, {"queue": 0.5, "prefill": 1, "decode": 1.5}),
    ],
)
async def test_where_the_time_of_a_request_went_that_ran_out_of_it(
    collector: Any, got_to: dict[str, Any], stages: dict[str, float]
) -> None:
    traces, late = Traces(Telemetry(otlp_endpoint=collector.url)), DeadlineExceeded("late")
    late.timings = Timings(arrived=1000.0, finished=1003.0, **got_to)
    with pytest.raises(DeadlineExceeded):
        await run(traces, Scripted(WHOLE[:1], error=late))
    await traces.close()
    spans = collector.spans()
    said = attributes(spans.pop("chat 7b"))
    assert (said["headrace.complete"], said["gen_ai.usage.output_tokens"]) == (False, 1)
    lasted = {
        name.removeprefix("engine."): (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        for name, span in spans.items()
    }
    assert lasted == pytest.approx(stages)


async def test_what_became_of_a_judged_answer(collector: Any) -> None:
    """Whoever judges it has the last delta already, and closes it then."""
    traces = Traces(Telemetry(otlp_endpoint=collector.url))
    judged = entry()
    deltas = following(traces, judged, Scripted(WHOLE))
    while (await anext(deltas)).usage is None:
        pass
    judged.confidence = 0.25
    judged.ends(ESCALATED)
    await deltas.aclose()
    await traces.close()
    said = attributes(collector.spans()["chat 7b"])
    assert (said["headrace.outcome"], said["headrace.confidence"]) == ("escalated", 0.25)
    assert said["headrace.complete"] is True


async def test_the_steps_of_an_engine_where_they_are_asked_for(collector: Any) -> None:
    steps = (
        StepRun(1000.5, 1001.0, 30, 1, 30),
        StepRun(1001.0, 1001.5, 10, 4, 13),
        StepRun(1002.5, 1003.0, 1, 5, 5),
    )
    timings = Timings(arrived=1000.0, scheduled=1000.5, first_token=1001.5, finished=1003.0, steps=steps)
    traces = Traces(Telemetry(otlp_endpoint=collector.url))
    await run(traces, Scripted([msgspec.structs.replace(WHOLE[-1], timings=timings)]), steps=True)
    await traces.close()
    spans = collector.spans()
    ran = [span for span in collector.all_spans() if span.name == "engine.step"]
    parents = [spans[f"engine.{name}"].span_id for name in ("prefill", "prefill", "decode")]
    assert [span.parent_span_id for span in ran] == parents
    assert [span.start_time_unix_nano / 1e9 for span in ran] == [1000.5, 1001.0, 1002.5]
    assert [span.end_time_unix_nano / 1e9 for span in ran] == [1001.0, 1001.5, 1003.0]
    assert attributes(ran[1]) == {
        "headrace.step.tokens": 10, "headrace.step.rows": 4, "headrace.step.total_tokens": 13,
    }  # fmt: skip


async def _close(deltas: AsyncGenerator[Delta, None]) -> None:
    await deltas.aclose()


async def test_spans_end_when_the_client_goes_away(collector: Any) -> None:
    traces = Traces(Telemetry(otlp_endpoint=collector.url))
    backend = Scripted([], hangs=True)

    async def serve() -> None:
        with traces.request("POST", "/v1/chat/completions", {}):
            await run(traces, backend)

    task = asyncio.create_task(serve())
    await backend.hanging.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await traces.close()
    assert set(collector.spans()) == {"POST /v1/chat/completions", "chat 7b"}


async def test_requests_side_by_side_keep_their_own_traces(collector: Any) -> None:
    traces = Traces(Telemetry(otlp_endpoint=collector.url))

    async def serve(number: int) -> str | None:
        with traces.request("POST", "/v1/chat/completions", {}) as request:
            await asyncio.sleep(0.001 * (number % 3))
            await run(traces, Scripted(WHOLE))
            return request.trace_id

    ids = await asyncio.gather(*(serve(number) for number in range(20)))
    await traces.close()
    assert len(set(ids)) == 20
    by_trace: dict[str, set[str]] = {}
    for span in collector.all_spans():
        by_trace.setdefault(span.trace_id.hex(), set()).add(span.name)
    assert set(by_trace) == set(ids) and all(len(names) == 5 for names in by_trace.values())


@pytest.mark.parametrize("flag", ["00", "01"])
async def test_a_client_cannot_decide_on_sampling(collector: Any, flag: str) -> None:
    everything = Traces(Telemetry(otlp_endpoint=collector.url, sample_ratio=1.0))
    nothing = Traces(Telemetry(otlp_endpoint=collector.url, sample_ratio=0.0))
    for traces, route in ((everything, "/v1/models"), (nothing, "/v1/completions")):
        with traces.request("GET", route, {"traceparent": PARENT[:-2] + flag}):
            with traces.span("headrace.route"):
                pass
        await traces.close()
    assert set(collector.spans()) == {"GET /v1/models", "headrace.route"}


@pytest.mark.parametrize("header", ["", "garbage", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", PARENT * 20])
async def test_a_trace_context_that_is_none_begins_a_new_trace(collector: Any, header: str) -> None:
    traces = Traces(Telemetry(otlp_endpoint=collector.url))
    with traces.request("GET", "/v1/models", {"traceparent": header}) as request:
        assert request.trace_id is not None and request.trace_id != PARENT.split("-")[1]
    await traces.close()
    assert not collector.spans()["GET /v1/models"].parent_span_id


async def test_without_a_collector_a_client_s_trace_is_passed_on() -> None:
    traces, backend = Traces(Telemetry()), Scripted(WHOLE)
    with traces.request("POST", "/v1/chat/completions", {"traceparent": PARENT}) as request:
        with traces.span("headrace.route"):
            await run(traces, backend)
        assert request.trace_id == PARENT.split("-")[1]
    with traces.request("POST", "/v1/chat/completions", {}) as request:
        await run(traces, backend)
        assert request.trace_id is None
    assert [seen.traceparent for seen in backend.seen] == [PARENT, None]
    await traces.close()


@pytest.fixture
def stalled() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def dead() -> str:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"http://127.0.0.1:{closed.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["stalled", "dead"])
async def test_a_collector_that_does_not_answer_costs_a_request_nothing(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """A stall of the machine may hold up one or another; waiting for the collector would hold up all."""
    traces = Traces(Telemetry(otlp_endpoint=request.getfixturevalue(kind)))
    took: list[float] = []
    for _ in range(3000):  # more spans than the queue holds
        started = time.perf_counter()
        with traces.request("POST", "/v1/chat/completions", {}):
            with traces.span("headrace.route"):
                pass
            with traces.span("headrace.classify"):
                pass
        took.append(time.perf_counter() - started)
    assert quantiles(took, n=100)[-1] < 0.5
    started = time.perf_counter()
    await traces.close()
    await traces.close()
    assert time.perf_counter() - started < FLUSH_TIMEOUT + 15  # the SDK's own patience is 30 s


async def test_stages_are_told_whether_a_request_is_traced_or_not(collector: Any) -> None:
    for traces in (Traces(Telemetry()), Traces(Telemetry(otlp_endpoint=collector.url))):
        stages: list[Stage] = []
        with traces.request("POST", "/v1/route", {}, stages):
            with traces.span("headrace.recall"):
                pass
            with pytest.raises(ValueError), traces.span("headrace.route"):
                raise ValueError
        with traces.span("headrace.recall"):
            pass  # of no request
        assert [stage.name for stage in stages] == ["headrace.recall", "headrace.route"]
        assert all(stage.started <= stage.ended for stage in stages)
        await traces.close()
