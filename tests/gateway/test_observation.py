"""What metrics and log are told of a call."""

import logging
from typing import Any

import pytest

from backends.backend import Usage
from gateway.config import Telemetry, Tenant
from gateway.dashboard.watch import Watch
from gateway.errors import ApiError, ClientGone
from gateway.exchange import Exchange
from gateway.metrics import Metrics
from gateway.observation import ABORTS, observer
from gateway.request import Answer, Route
from gateway.telemetry import Traces


def answer() -> Answer:
    route = Route(order=("7b",), reason="7b: requested", assessment=None)
    headers = {"x-headrace-reason": "7b: requested"}
    return Answer(id="r", created=0, tier="7b", route=route, session=None, headers=headers, deltas=None)  # type: ignore[arg-type]


def scope(path: str = "/v1/chat/completions", method: str = "POST") -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "headers": []}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(["7b"], {}, ["t"])


def series(metrics: Metrics, start: str) -> list[str]:
    """Samples above 0 whose line starts like this."""
    lines = metrics.render().decode().splitlines()
    return [line for line in lines if line.startswith(start) and not line.endswith(" 0.0")]


def observe(metrics: Metrics, exchange: Exchange, call: dict[str, Any] | None = None) -> None:
    with observer(metrics, Traces(Telemetry()), Watch({}))(exchange, call or scope()):
        pass


def test_a_complete_answer(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    exchange = Exchange(id="r", endpoint="chat", tenant=Tenant(name="t"), answer=answer(), status=200)
    exchange.usage = Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=1)
    exchange.first_text = 0.25
    with caplog.at_level(logging.INFO):
        observe(metrics, exchange)
    assert series(metrics, "headrace_requests_total") == [
        'headrace_requests_total{endpoint="chat",error_code="none",status="200",tier="7b"} 1.0'
    ]
    assert series(metrics, "headrace_stream_aborts") == []
    (record,) = caplog.records
    told = vars(record)["headrace"]
    assert (told["request_id"], told["tenant"], told["tier"], told["reason"]) == (
        "r",
        "t",
        "7b",
        "7b: requested",
    )
    assert (told["prompt_tokens"], told["completion_tokens"], told["first_text"]) == (5, 2, 0.25)


@pytest.mark.parametrize("code", ABORTS)
def test_a_broken_stream(metrics: Metrics, code: str) -> None:
    exchange = Exchange(id="r", endpoint="chat", answer=answer(), status=200)
    exchange.error = ApiError(502, "", code=code)
    observe(metrics, exchange)
    assert series(metrics, "headrace_stream_aborts") == [
        f'headrace_stream_aborts_total{{reason="{ABORTS[code]}"}} 1.0'
    ]
    assert f'error_code="{code}",status="200"' in series(metrics, "headrace_requests_total")[0]


def test_a_client_that_left(metrics: Metrics) -> None:
    observe(metrics, Exchange(id="r", endpoint="completions", status=499))
    assert series(metrics, "headrace_stream_aborts") == ['headrace_stream_aborts_total{reason="client"} 1.0']


def test_a_refusal_is_no_abort(metrics: Metrics) -> None:
    exchange = Exchange(id="r", endpoint="chat", status=503, error=ApiError(503, "", code="engine_died"))
    observe(metrics, exchange)
    assert series(metrics, "headrace_stream_aborts") == []


def test_a_call_that_raises_is_counted_too(metrics: Metrics) -> None:
    exchange = Exchange(id="r", endpoint="chat", status=500, error=ApiError(500, "", code="internal_error"))
    with pytest.raises(ClientGone), observer(metrics, Traces(Telemetry()), Watch({}))(exchange, scope()):
        raise ClientGone
    assert len(series(metrics, "headrace_requests_total")) == 1


def test_probes_are_not_counted(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        observe(metrics, Exchange(id="r", endpoint="probe", status=200), scope("/livez", "GET"))
    assert series(metrics, "headrace_requests_total") == []
    assert not caplog.records


def test_what_a_client_types_is_no_label(metrics: Metrics) -> None:
    for number in range(5):
        observe(metrics, Exchange(id="r", endpoint="other", status=404), scope(f"/{number}", f"M{number}"))
    assert len(series(metrics, "headrace_requests_total")) == 1


def test_the_log_tells_what_was_used_though_nobody_has_got_a_whole_answer(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    """Its tokens are those of its cost, of its record and of the page: of all attempts."""
    exchange = Exchange(id="r", endpoint="chat", answer=answer(), status=499)
    exchange.ledger.open("7b", "7b/0").ends("engine_died")
    usage = Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=1)
    exchange.ledger.open("7b", "7b/1").settled(None, usage, 0.5)
    exchange.ledger.open("7b", "7b/2").settled(None, usage, 0.25)
    with caplog.at_level(logging.INFO):
        observe(metrics, exchange)
    told = vars(caplog.records[0])["headrace"]
    assert (told["prompt_tokens"], told["cached_tokens"], told["completion_tokens"]) == (10, 2, 4)
    assert (told["cost"], told["attempts"]) == (0.75, "7b/0 engine_died, 7b/1 aborted, 7b/2 aborted")


def test_a_clock_that_is_put_back_lets_no_sum_fall(metrics: Metrics) -> None:
    exchange = Exchange(id="r", endpoint="chat", answer=answer(), status=200)
    entry = exchange.ledger.open("7b", "7b/0")
    entry.started += 3600
    entry.ends("answered")
    observe(metrics, exchange)
    assert metrics.totals().of("gen_ai_client_operation_duration_seconds_sum") == 0
    assert metrics.totals().of("gen_ai_client_operation_duration_seconds_count") == 1
