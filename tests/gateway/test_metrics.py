"""What a scrape shows: every series from the start, totals that never fall, labels that clients cannot multiply."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from backends.backend import Timings, Usage
from backends.wire import GAPS, STEP_SIZES, EngineConfig, Load
from gateway.engine_metrics import durations
from gateway.metrics import CONTENT_TYPE, MAX_ERROR_CODES, Metrics, measure_lag

TIERS = ["7b", "13b"]
ENGINES = {"7b/0": "small", "13b/0": "middle"}
SMALL = {"model_name": "small", "engine": "7b/0"}


def load(incarnation: str = "a", **counts: Any) -> Load:
    fields: dict[str, Any] = {field.name: 0 for field in msgspec.structs.fields(Load) if field.required}
    fields |= {
        "engine": "7b/0",
        "incarnation": incarnation,
        "blocks_total": 100,
        "blocks_free": 100,
        "finished": {},
    }
    return Load(**fields | counts)


def described(engine: str, **fields: Any) -> EngineConfig:
    return EngineConfig(name=engine, model="", socket="", vocabulary="", **fields)


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics(TIERS, ENGINES, ["acme"])
    for engine in ENGINES:
        metrics.describe(described(engine))
    return metrics


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """By name and labels, parsed from the page as Prometheus would."""
    page = metrics.render().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return samples(metrics)[name, frozenset(labels.items())]


def test_the_page_is_text_0_0_4_with_colons_and_without_creation_times(metrics: Metrics) -> None:
    page = metrics.render().decode()
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")
    assert '\nvllm:num_requests_running{engine="7b/0",model_name="small"} 0.0\n' in page
    assert "vllm_" not in page and "_created" not in page and "# EOF" not in page


FROM_THE_START = [
    *[
        (f"vllm:{name}", SMALL)
        for name in (
            "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total",
            "prefix_cache_hits_total", "prompt_tokens_total", "generation_tokens_total", "num_preemptions_total",
            "time_to_first_token_seconds_count", "request_time_per_output_token_seconds_count",
            "e2e_request_latency_seconds_count", "request_queue_time_seconds_count",
            "request_prefill_time_seconds_count", "request_decode_time_seconds_count",
        )
    ],
    ("vllm:request_success_total", {**SMALL, "finished_reason": "length"}),
    ("vllm:num_requests_waiting_by_reason", {**SMALL, "reason": "deferred"}),
    ("vllm:admission_rejections_total", {"model_name": "small", "reason": "tokens"}),
    ("vllm:request_params_n_count", SMALL),
    ("vllm:request_params_max_tokens_count", SMALL),
    ("headrace_requests_total", {"endpoint": "chat", "tier": "7b", "status": "200", "error_code": "none"}),
    ("headrace_requests_total", {"endpoint": "chat", "tier": "7b", "status": "200", "error_code": "engine_died"}),
    ("headrace_route_decisions_total", {"tier": "13b", "reason": "classifier"}),
    ("headrace_stream_aborts_total", {"reason": "client"}),
    ("headrace_classifier_seconds_count", {}),
    ("headrace_ratelimit_decisions_total", {"limit": "tokens", "decision": "deny"}),
    ("headrace_tokens_total", {"tenant": "acme", "tier": "13b", "kind": "completion"}),
    ("headrace_engine_restarts_total", {"engine": "7b/0"}),
    ("headrace_cost_total", {"tenant": "acme", "tier": "7b"}),
    ("headrace_cost_largest_tier_total", {"tenant": "acme", "tier": "13b"}),
    ("headrace_sessions_total", {"event": "unknown"}),
    ("vllm:request_prompt_tokens_count", SMALL),
    ("vllm:request_generation_tokens_count", SMALL),
    ("headrace_event_loop_lag_seconds_count", {}),
    ("headrace_time_to_first_token_seconds_count", {"tier": "7b"}),
    ("headrace_time_per_output_token_seconds_count", {"tier": "7b"}),
    ("headrace_request_seconds_count", {"tier": "none"}),
    ("headrace_draining", {}),
    ("headrace_engine_streams_at_pace_total", SMALL),
    ("headrace_engine_queue", {**SMALL, "state": "waiting", "traffic": "batch"}),
    ("headrace_engine_first_tokens_total", {**SMALL, "band": "2", "in_time": "false"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "labels"), FROM_THE_START)
def test_every_series_is_there_at_0_from_the_first_scrape(
    metrics: Metrics, name: str, labels: dict[str, str]
) -> None:
    assert value(metrics, name, **labels) == 0


def test_the_first_scrape_shows_all_names_that_the_last_one_shows(metrics: Metrics) -> None:
    before = {name for name, _ in samples(metrics)}
    metrics.load(load(prompt_tokens=1, finished={"stop": 1}))
    metrics.request("chat", "7b", 503, "engine_died", 0.1)
    metrics.route("7b", "failover")
    metrics.limit("parallel", "deny")
    metrics.tokens("acme", "7b", Usage(prompt_tokens=1, completion_tokens=1))
    assert {name for name, _ in samples(metrics)} == before


def test_what_an_engine_says_of_itself(metrics: Metrics) -> None:
    metrics.load(
        load(running=3, waiting=2, blocks_free=20, blocks_cached=30, prefix_queries=50, prefix_hits=40)
    )
    assert value(metrics, "vllm:num_requests_running", **SMALL) == 3
    assert value(metrics, "vllm:num_requests_waiting", **SMALL) == 2
    assert value(metrics, "vllm:kv_cache_usage_perc", **SMALL) == 0.5  # cached blocks are as good as free
    assert value(metrics, "vllm:prefix_cache_queries_total", **SMALL) == 50
    assert value(metrics, "vllm:prefix_cache_hits_total", **SMALL) == 40
    other = {"model_name": "middle", "engine": "13b/0"}
    assert value(metrics, "vllm:num_requests_running", **other) == 0


def test_why_requests_wait_and_why_they_are_turned_away(metrics: Metrics) -> None:
    waiting, rejected = "vllm:num_requests_waiting_by_reason", "vllm:admission_rejections_total"
    metrics.load(load(waiting=5, deferred=2, refused={"requests": 3}))
    assert value(metrics, waiting, **SMALL, reason="capacity") == 3
    assert value(metrics, waiting, **SMALL, reason="deferred") == 2
    metrics.load(load(refused={"requests": 4, "tokens": 1}))
    metrics.load(load("b", refused={"tokens": 1}))
    assert value(metrics, rejected, model_name="small", reason="requests") == 4
    assert value(metrics, rejected, model_name="small", reason="tokens") == 2
    metrics.load(load("c", waiting=5))
    metrics.idle("7b/0")
    assert value(metrics, waiting, **SMALL, reason="capacity") == 0


def test_totals_go_on_where_a_restarted_engine_begins_again_at_0(metrics: Metrics) -> None:
    said = [
        load("a", generation_tokens=10, finished={"stop": 2}),
        load("a", generation_tokens=15, finished={"stop": 3}),
        load("b", generation_tokens=4, finished={"stop": 1}),
        load("b", generation_tokens=4, finished={"stop": 1, "length": 1}),
    ]
    totals = []
    for report in said:
        metrics.load(report)
        totals.append(value(metrics, "vllm:generation_tokens_total", **SMALL))
    assert totals == [10, 15, 19, 19]
    assert value(metrics, "vllm:request_success_total", **SMALL, finished_reason="stop") == 4
    assert value(metrics, "vllm:request_success_total", **SMALL, finished_reason="length") == 1


def test_what_an_engine_has_sorted_by_size_is_a_histogram(metrics: Metrics) -> None:
    none, some = [0] * (len(GAPS) + 1), [0] * (len(GAPS) + 1)
    some[0], some[-1] = 7, 2
    more = [*some[:-1], 3]
    for incarnation, gaps, seconds in (
        ("a", some, 180.5),
        ("a", more, 280.5),
        ("b", none, 0.0),
        ("b", some, 180.5),
    ):
        metrics.load(load(incarnation, gaps=tuple(gaps), gap_seconds=seconds))
    name = "vllm:inter_token_latency_seconds"
    assert value(metrics, f"{name}_bucket", **SMALL, le="0.01") == 14
    assert value(metrics, f"{name}_bucket", **SMALL, le="80.0") == 14
    assert (
        value(metrics, f"{name}_bucket", **SMALL, le="+Inf") == value(metrics, f"{name}_count", **SMALL) == 19
    )
    assert value(metrics, f"{name}_sum", **SMALL) == 461
    sizes = [0] * (len(STEP_SIZES) + 1)
    sizes[1] = 4
    metrics.load(load("c", step_sizes=tuple(sizes), step_tokens=21))
    assert value(metrics, "vllm:iteration_tokens_total_bucket", **SMALL, le="8.0") == 4
    assert value(metrics, "vllm:iteration_tokens_total_sum", **SMALL) == 21


def test_restarts_are_told_as_a_total(metrics: Metrics) -> None:
    for total in (0, 2, 2, 3):
        metrics.restarts("7b/0", total)
    assert value(metrics, "headrace_engine_restarts_total", engine="7b/0") == 3


def test_an_engine_nobody_knows_is_refused(metrics: Metrics) -> None:
    with pytest.raises(KeyError):
        metrics.load(load(engine="8b/0"))


def test_the_times_of_a_generation(metrics: Metrics) -> None:
    timings = Timings(arrived=100.0, scheduled=100.5, first_token=101.5, finished=103.5)
    usage = Usage(prompt_tokens=7, completion_tokens=5)
    metrics.generation("7b/0", usage, timings, 2, 40)
    metrics.generation("70b/0", usage, None)  # a remote one
    assert value(metrics, "vllm:request_params_n_sum", **SMALL) == 2
    assert value(metrics, "vllm:request_params_max_tokens_sum", **SMALL) == 40
    for name, seconds in {
        "time_to_first_token_seconds": 1.5,
        "request_time_per_output_token_seconds": 0.5,
        "e2e_request_latency_seconds": 3.5,
        "request_queue_time_seconds": 0.5,
        "request_prefill_time_seconds": 1.0,
        "request_decode_time_seconds": 2.0,
        "request_inference_time_seconds": 3.0,
    }.items():
        assert value(metrics, f"vllm:{name}_sum", **SMALL) == seconds
        assert value(metrics, f"vllm:{name}_count", **SMALL) == 1


def test_durations_of_what_was_not_reached_are_left_out() -> None:
    assert durations(Timings(arrived=1.0, finished=3.0), 0) == {"whole": 2.0}
    assert durations(Timings(arrived=5.0, scheduled=4.0), 1) == {"queue": 0.0}  # a clock set back


def test_one_token_has_no_time_per_further_token(metrics: Metrics) -> None:
    metrics.answered("7b", 0.2, 0.2, 1)
    metrics.answered("7b", 0.2, 1.2, 6)
    assert value(metrics, "headrace_time_to_first_token_seconds_count", tier="7b") == 2
    assert value(metrics, "headrace_time_per_output_token_seconds_count", tier="7b") == 1
    assert value(metrics, "headrace_time_per_output_token_seconds_sum", tier="7b") == 0.2


def test_tokens_of_a_tenant(metrics: Metrics) -> None:
    metrics.tokens("acme", "7b", Usage(prompt_tokens=10, completion_tokens=3, cached_tokens=8))
    got = [
        value(metrics, "headrace_tokens_total", tenant="acme", tier="7b", kind=kind)
        for kind in ("prompt", "cached", "completion")
    ]
    assert got == [10, 8, 3]


def test_money_of_a_tenant(metrics: Metrics) -> None:
    metrics.money("acme", "7b", 0.25)
    metrics.money_of_largest("acme", "7b", 2.0)
    metrics.money("acme", "7b", 0.25)
    metrics.money_of_largest("acme", "7b", 2.0)
    assert value(metrics, "headrace_cost_total", tenant="acme", tier="7b") == 0.5
    assert value(metrics, "headrace_cost_largest_tier_total", tenant="acme", tier="7b") == 4.0


def test_old_names_only_where_they_are_asked_for() -> None:
    assert "vllm:gpu_cache_usage_perc" not in Metrics(TIERS, ENGINES, []).render().decode()
    old = Metrics(TIERS, ENGINES, [], old_names=True)
    old.load(load(running=3, blocks_free=25))
    assert value(old, "vllm:gpu_cache_usage_perc", **SMALL) == 0.75
    assert value(old, "vllm:num_running_seqs", **SMALL) == 3
    assert value(old, "vllm:num_requests_running", **SMALL) == 3


def test_whatever_clients_send_the_page_stays_small(metrics: Metrics) -> None:
    before = len(metrics.render().splitlines())
    for number in range(1000):
        odd = f"odd-{number}"
        metrics.request(odd, odd, 400, odd, 0.1)
        metrics.route(odd, odd)
        metrics.limit(odd, odd)
        metrics.aborted(odd)
        metrics.tokens("acme", odd, Usage(prompt_tokens=1, completion_tokens=1))
        metrics.money("acme", odd, 0.1)
        metrics.money_of_largest("acme", odd, 0.1)
        metrics.session(odd)
        metrics.state_backend(odd, up=False)
    assert len(metrics.render().splitlines()) < before + MAX_ERROR_CODES + 50
    labels = {"endpoint": "other", "tier": "other", "status": "400", "error_code": "other"}
    assert value(metrics, "headrace_requests_total", **labels) > 900


def test_the_state_of_gateway_and_stores(metrics: Metrics) -> None:
    metrics.draining(True)
    metrics.state_backend("limits", up=False)
    assert value(metrics, "headrace_draining") == 1
    assert value(metrics, "headrace_state_backend_up", kind="limits") == 0
    assert value(metrics, "headrace_state_backend_up", kind="sessions") == 1


def test_watched_backends_are_shown_as_they_are(metrics: Metrics) -> None:
    backend = _Backend()
    metrics.watch(backend)
    metrics.load(load(running=3, waiting=1))
    assert value(metrics, "headrace_backend_inflight", backend="7b/0") == 2
    assert value(metrics, "headrace_backend_up", backend="7b/0") == 1
    assert value(metrics, "vllm:num_requests_running", **SMALL) == 3
    assert value(metrics, "headrace_breaker_open", backend="7b/0") == 0
    backend.available, backend.tripped = False, True
    assert value(metrics, "headrace_breaker_open", backend="7b/0") == 1
    assert value(metrics, "headrace_backend_up", backend="7b/0") == 0
    metrics.idle("7b/0")  # whoever runs the engine says so
    assert value(metrics, "vllm:num_requests_running", **SMALL) == 0  # its last words are no news


def test_the_shape_of_the_cache(metrics: Metrics) -> None:
    assert value(metrics, "vllm:cache_config_info", **SMALL, block_size="16", num_gpu_blocks="512") == 1


async def test_a_blocked_event_loop_shows(metrics: Metrics) -> None:
    task = asyncio.create_task(measure_lag(metrics, 0.01))
    await asyncio.sleep(0.03)
    time.sleep(0.2)
    await asyncio.sleep(0.03)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    slow = value(metrics, "headrace_event_loop_lag_seconds_count") - value(
        metrics, "headrace_event_loop_lag_seconds_bucket", le="0.1"
    )
    assert slow >= 1


class _Backend:
    """As much of a backend as the metrics look at."""

    name = "7b/0"
    tokenizer = None
    context_length = 10
    available = True
    takes_tools = True
    recovering = False
    tripped = False
    in_flight = 2

    refusal: Callable[..., Any]
    stream: Callable[..., Any]
    warm: Callable[..., Any]
    start: Callable[..., Any]
    close: Callable[..., Any]
