"""The metrics of OpenTelemetry's GenAI conventions: what a request leaves in them, and by which names."""

from pathlib import Path
from typing import Any

import pytest

from backends.backend import Usage
from backends.prompt import Prompt
from gateway.config import Telemetry, Tenant
from gateway.dashboard.watch import Watch
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.metrics import MAX_ERROR_CODES, Metrics
from gateway.observation import observer
from gateway.request import Answer, Request, Route
from gateway.telemetry import Traces
from gateway.totals import Totals

USAGE = Usage(prompt_tokens=40, completion_tokens=5, cached_tokens=8)
ENGINES = {"7b/0": "small", "13b/0": "middle"}


def new_metrics(shared: Path | None = None) -> Metrics:
    return Metrics(["7b", "13b"], ENGINES, ["t"], shared=shared)


def answered(tier: str = "13b", model: str = "auto", endpoint: str = "chat") -> Exchange:
    """By that tier, after the cheapest has failed."""
    route = Route(order=(tier,), reason="because", assessment=None)
    answer = Answer(id="r", created=0, tier=tier, route=route, session=None, deltas=None)  # type: ignore[arg-type]
    request = Request(tenant=Tenant(name="t"), prompt=Prompt(), model=model, **ASKED)
    exchange = Exchange(id="r", endpoint=endpoint, answer=answer, status=200, usage=USAGE, first_text=0.2)
    exchange.requests = (request,)
    exchange.started -= 1.0
    exchange.ledger.open("7b", "7b/0", "small").ends("engine_died")
    exchange.ledger.open(tier, f"{tier}/0", "middle").settled(None, USAGE, 0.0)
    return exchange


ASKED: dict[str, Any] = {
    "id": "r", "endpoint": "chat", "session": None, "max_tokens": None, "temperature": 1.0, "top_p": 1.0,
    "top_k": 0, "seed": None, "stop": (), "stop_token_ids": (), "ignore_eos": False, "timeout": 1.0, "priority": 0,
}  # fmt: skip


def observed(*exchanges: Exchange) -> Totals:
    metrics = new_metrics()
    observe = observer(metrics, Traces(Telemetry()), Watch({}))
    for exchange in exchanges:
        with observe(exchange, {"type": "http", "method": "POST", "path": "/", "headers": []}):
            pass
    return metrics.totals()


def test_a_request_as_its_client_sees_it() -> None:
    totals = observed(answered())
    who = {
        "gen_ai_operation_name": "chat",
        "gen_ai_system": "headrace",
        "gen_ai_request_model": "auto",
        "gen_ai_response_model": "13b",
    }
    assert totals.of("gen_ai_server_request_duration_seconds_count", error_type="", **who) == 1
    assert totals.of("gen_ai_server_request_duration_seconds_sum", **who) == pytest.approx(1.0, abs=0.5)
    assert totals.of("gen_ai_server_time_to_first_token_seconds_sum", **who) == 0.2
    per_token = totals.of("gen_ai_server_time_per_output_token_seconds_sum", **who)
    assert per_token == pytest.approx((1.0 - 0.2) / 4, abs=0.1)


def test_its_attempts_as_the_gateway_sees_its_replicas() -> None:
    totals = observed(answered())
    duration, used = "gen_ai_client_operation_duration_seconds_count", "gen_ai_client_token_usage_sum"
    assert totals.of(duration, gen_ai_request_model="7b", error_type="engine_died") == 1
    assert totals.of(duration, gen_ai_response_model="middle", error_type="") == 1
    assert totals.of(used, gen_ai_response_model="middle", gen_ai_token_type="input") == 40
    assert totals.of(used, gen_ai_response_model="middle", gen_ai_token_type="output") == 5
    assert totals.of(used, gen_ai_request_model="7b") == 0


@pytest.mark.parametrize(
    ("status", "code", "told"), [(503, "engine_died", "engine_died"), (499, None, "client_gone")]
)
def test_what_failed_has_a_duration_alone(status: int, code: str | None, told: str) -> None:
    exchange = answered()
    exchange.status, exchange.usage = status, None
    exchange.error = None if code is None else ApiError(status, "m", code=code)
    totals = observed(exchange)
    assert totals.of("gen_ai_server_request_duration_seconds_count", error_type=told) == 1
    assert totals.of("gen_ai_server_time_to_first_token_seconds_count") == 0
    assert totals.of("gen_ai_server_time_per_output_token_seconds_count") == 0


def test_a_completion_is_no_chat_and_a_model_that_is_none_has_no_name() -> None:
    stranger = answered(model="whatever I like", endpoint="completions")
    stranger.answer = None
    stranger.status, stranger.error = 404, ApiError(404, "m", code="model_not_found")
    totals = observed(stranger)
    name = "gen_ai_server_request_duration_seconds_count"
    assert {asked for (asked,) in totals.by(name, "gen_ai_request_model")} == {"", "auto", "7b", "13b"}
    assert totals.of(name, gen_ai_operation_name="text_completion", error_type="model_not_found") == 1


def test_errors_have_so_many_names_at_most() -> None:
    exchanges = []
    for number in range(2 * MAX_ERROR_CODES):
        exchange = answered()
        exchange.ledger.entries[0].outcome = f"upstream said {number}"
        exchange.error, exchange.status = ApiError(502, "m", code=f"code_{number}"), 502
        exchanges.append(exchange)
    totals = observed(*exchanges)
    for name in (
        "gen_ai_server_request_duration_seconds_count",
        "gen_ai_client_operation_duration_seconds_count",
    ):
        assert len(totals.by(name, "error_type")) <= MAX_ERROR_CODES + 2
        assert totals.of(name, error_type="other") > MAX_ERROR_CODES


def test_the_latest_names_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    old = new_metrics().render().decode()
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental")
    new = new_metrics().render().decode()
    assert 'gen_ai_system="headrace"' in old and "gen_ai_provider_name" not in old
    assert 'gen_ai_provider_name="headrace"' in new and "gen_ai_system" not in new
