"""The `gen_ai.*` metrics over real OTLP/HTTP, to a collector in a thread."""

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, HistogramDataPoint

from backends.backend import Usage
from gateway.config import Telemetry
from gateway.metrics import Metrics
from gateway.otlp_metrics import FLUSH_TIMEOUT, exported

USAGE = Usage(prompt_tokens=40, completion_tokens=5)
NAMES = {
    "gen_ai.server.request.duration": "s",
    "gen_ai.server.time_to_first_token": "s",
    "gen_ai.server.time_per_output_token": "s",
    "gen_ai.client.operation.duration": "s",
    "gen_ai.client.token.usage": "{token}",
}


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics(["7b"], {"7b/0": "small"}, ["t"])
    metrics.gen_ai.request("chat", "auto", "7b", "", 0.7)
    metrics.gen_ai.answered("chat", "auto", "7b", (0.03, 0.7), 5)
    metrics.gen_ai.attempt("chat", "7b", "small", "", 0.6, USAGE)
    return metrics


def attributes(point: HistogramDataPoint) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in point.attributes}


async def test_all_of_them_by_their_own_names(metrics: Metrics, collector: Any) -> None:
    metrics.gen_ai.request("chat", "", "", "model_not_found", 0.001)
    before = time.time_ns()
    async with exported(Telemetry(otlp_endpoint=collector.url, service_name="gate"), metrics):
        assert collector.metric_bodies == []
    sent = collector.metrics()
    assert {name: metric.unit for name, metric in sent.items()} == NAMES
    assert b"gate" in collector.metric_bodies[-1] and b"service.instance.id" in collector.metric_bodies[-1]
    cumulative = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    assert all(metric.histogram.aggregation_temporality == cumulative for metric in sent.values())
    first, second = sent["gen_ai.server.request.duration"].histogram.data_points
    points = sorted((first, second), key=lambda point: point.sum)
    assert attributes(points[0]) == {
        "gen_ai.operation.name": "chat", "gen_ai.system": "headrace", "error.type": "model_not_found",
    }  # fmt: skip
    assert attributes(points[1]) == {
        "gen_ai.operation.name": "chat", "gen_ai.system": "headrace", "gen_ai.request.model": "auto",
        "gen_ai.response.model": "7b",
    }  # fmt: skip
    assert (points[1].count, points[1].sum) == (1, 0.7)
    at = list(points[1].bucket_counts).index(1)
    assert points[1].explicit_bounds[at - 1] < 0.7 <= points[1].explicit_bounds[at]
    assert sum(points[1].bucket_counts) == 1
    assert len(points[1].bucket_counts) == len(points[1].explicit_bounds) + 1
    assert before <= points[1].start_time_unix_nano <= points[1].time_unix_nano
    kinds = {
        attributes(point)["gen_ai.token.type"]: point.sum
        for point in sent["gen_ai.client.token.usage"].histogram.data_points
    }
    assert kinds == {"input": 40, "output": 5}


async def test_every_so_often_and_once_more_at_the_end(
    metrics: Metrics, collector: Any, eventually: Callable[..., Any]
) -> None:
    config = Telemetry(otlp_endpoint=collector.url + "/", otlp_metrics_every=0.05)
    async with exported(config, metrics):
        await eventually(lambda: len(collector.metric_bodies) > 1)
        metrics.gen_ai.request("chat", "auto", "7b", "", 0.7)
    (point,) = collector.metrics()["gen_ai.server.request.duration"].histogram.data_points
    assert point.count == 2


@pytest.mark.parametrize("config", [{"otlp_metrics_every": None}, {"otlp_endpoint": None}])
async def test_none_are_sent_where_none_are_wanted(
    metrics: Metrics, collector: Any, config: dict[str, Any]
) -> None:
    async with exported(Telemetry(**{"otlp_endpoint": collector.url} | config), metrics):
        pass
    assert collector.metric_bodies == []


async def test_nothing_is_sent_of_a_gateway_that_nobody_has_called(collector: Any) -> None:
    async with exported(Telemetry(otlp_endpoint=collector.url), Metrics(["7b"], {"7b/0": "small"}, ["t"])):
        pass
    assert collector.metric_bodies == []


async def test_a_collector_that_hangs_does_not_hold_up_the_end(metrics: Metrics) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.perf_counter()
        async with exported(Telemetry(otlp_endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}"), metrics):
            pass
        assert time.perf_counter() - started < FLUSH_TIMEOUT + 15
