"""From users to requests, replicas and money."""

import math

import pytest

from backends.models.config import DecoderConfig
from gateway.planning.assumptions import Assumptions
from gateway.planning.demand import dollars_per_million, fleet, mix, peak_rate
from gateway.planning.gpus import GPUS
from gateway.planning.replica import Replica


def of(config: DecoderConfig, **given: float) -> Replica:
    return Replica(config, "fp16", GPUS["a100-80g"], 1, Assumptions(**given))  # type: ignore[arg-type]


def test_users_make_requests() -> None:
    assert peak_rate(86_400, 1, 1) == 1
    assert peak_rate(100_000, 20, 3) == pytest.approx(69.44, abs=0.01)


def test_a_replica_reads_prompts_and_writes_answers(llama_7b: DecoderConfig) -> None:
    replica = of(llama_7b, prompt_tokens=1000, answer_tokens=200, max_batch=32)
    found = mix(replica)
    step = replica.step(32, 1100)
    assert found.batch == 32
    assert found.read == replica.prefill(1000)
    assert found.written == pytest.approx(200 * step / 32)
    assert found.requests == pytest.approx(1 / (found.read + found.written))


def test_the_first_token_waits_for_a_step_the_queue_and_the_prompt(llama_7b: DecoderConfig) -> None:
    for load, queue in ((0.5, 0.5), (0.8, 2.0), (0.9, 4.5)):  # M/D/1: load / (2 · (1 - load))
        replica = of(llama_7b, load=load, max_batch=1)
        read, step = replica.prefill(512), replica.step(1, 512 + 128)
        assert mix(replica).first_token == pytest.approx(step / 2 + queue * read + read)


def test_what_is_cached_is_not_read(llama_7b: DecoderConfig) -> None:
    assert mix(of(llama_7b, cached=0.75)).read == of(llama_7b).prefill(128)
    assert mix(of(llama_7b, cached=1.0)).read == of(llama_7b).prefill(1)


def test_the_batch_is_what_fits_or_what_is_allowed(llama_7b: DecoderConfig) -> None:
    fits = of(llama_7b).sequences(768)
    assert mix(of(llama_7b)).batch == fits < 256
    assert mix(of(llama_7b, max_batch=10)).batch == 10


def test_a_fleet_holds_the_peak_at_its_load(llama_7b: DecoderConfig) -> None:
    replica = of(llama_7b, load=0.6, peak=4.0, requests_per_user=10)
    found, each = fleet(replica, 1_000_000), mix(replica)
    peak = 1_000_000 * 10 / 86_400 * 4
    assert found.peak_requests_per_s == pytest.approx(peak)
    assert found.replicas == math.ceil(peak / (each.requests * 0.6))
    assert (found.replicas - 1) * each.requests * 0.6 < peak <= found.replicas * each.requests * 0.6
    assert found.prefill_gpus == math.ceil(peak * each.read / 0.6)
    assert found.decode_gpus == math.ceil(peak * each.written / 0.6)
    assert found.in_flight == pytest.approx(peak * each.whole)
    assert found.usd_per_month == pytest.approx(found.gpus * 2.16 * 730)


def test_nobody_is_served_by_less_than_one_replica(llama_70b: DecoderConfig) -> None:
    found = fleet(Replica(llama_70b, "fp16", GPUS["h100"], 4, Assumptions()), 1)
    assert (found.replicas, found.gpus, found.prefill_gpus, found.decode_gpus) == (1, 4, 4, 4)


def test_dollars_per_million_tokens(llama_7b: DecoderConfig) -> None:
    assert dollars_per_million(of(llama_7b), 1000) == pytest.approx(2.16 / 3.6)
    unpriced = Replica(llama_7b, "fp16", GPUS["mi300x"], 1, Assumptions())
    assert dollars_per_million(unpriced, 1000) is None
    assert fleet(unpriced, 1000).usd_per_month is None
