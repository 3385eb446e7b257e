"""What fits on GPUs and how fast it runs there: against the formulas, and against published rates."""

from dataclasses import replace

import pytest

from backends.models.config import DecoderConfig
from gateway.planning.assumptions import Assumptions
from gateway.planning.gpus import GPUS
from gateway.planning.replica import Replica, obstacle
from gateway.planning.subject import subject

A100 = GPUS["a100-80g"]
IDEAL = Assumptions(memory_efficiency=1.0, compute_efficiency=1.0, reduce_us=0.0)


def test_a_70b_in_16_bits_fits_no_single_a100(llama_70b: DecoderConfig) -> None:
    for name in ("a100-40g", "a100-80g"):
        whole = Replica(llama_70b, "fp16", GPUS[name], 1, Assumptions(memory_share=1.0))
        assert whole.room < 0
        assert whole.sequences(1) == 0
    assert Replica(llama_70b, "fp16", A100, 2, Assumptions()).sequences(4096) == 4


def test_room_and_sequences(llama_7b: DecoderConfig) -> None:
    replica = Replica(llama_7b, "fp16", A100, 1, Assumptions())
    room = 80e9 * 0.9 - 2 * 6_738_415_616
    assert replica.room == pytest.approx(room)
    assert replica.sequences(4096) == int(room // (4096 * 524_288))


def test_decoding_is_bandwidth_over_weights_and_kv(llama_7b: DecoderConfig) -> None:
    for batch in (1, 8):
        step = Replica(llama_7b, "fp16", A100, 1, IDEAL).step(batch, 1000)
        assert step == pytest.approx((2 * 6_738_415_616 + batch * 1000 * 524_288) / 2039e9)
    limit = Replica(llama_7b, "fp16", A100, 1, Assumptions()).limit(1000)
    assert limit == pytest.approx(2039e9 / (2 * 6_738_415_616 + 1000 * 524_288))


def test_large_batches_are_bound_by_the_rate(llama_7b: DecoderConfig) -> None:
    linears = 32 * 4096 * (4 * 4096 + 3 * 11008)
    step = Replica(llama_7b, "fp16", A100, 1, IDEAL).step(4096, 1)
    operations = 4096 * (2 * (linears + 32000 * 4096) + 4 * 32 * 128 * 32)
    assert step == pytest.approx(operations / 312e12)


def test_a_prompt_is_bound_by_the_rate(llama_7b: DecoderConfig) -> None:
    linears = 32 * 4096 * (4 * 4096 + 3 * 11008)
    products = 2 * (linears * 2048 + 32000 * 4096)
    attention = 4 * 32 * 128 * 32 * (2048 * 2049 // 2)
    assert Replica(llama_7b, "fp16", A100, 1, IDEAL).prefill(2048) == pytest.approx(
        (products + attention) / 312e12
    )
    # int8 has twice the rate for products, and not for attention
    assert Replica(llama_7b, "int8", A100, 1, IDEAL).prefill(2048) == pytest.approx(
        (products / 2 + attention) / 312e12
    )


@pytest.mark.parametrize(("format", "same"), [("fp8", True), ("int4", True), ("int8", False)])
def test_what_a_gpu_has_no_rate_for_runs_in_16_bits(llama_7b: DecoderConfig, format: str, same: bool) -> None:
    plain, packed = (Replica(llama_7b, each, A100, 1, IDEAL).prefill(2048) for each in ("fp16", format))
    assert (packed == pytest.approx(plain)) == same


def test_kv_heads_are_repeated_where_there_are_fewer_than_gpus() -> None:
    config = subject("qwen2.5-7b").config  # 28 heads, 4 KV heads
    whole, four = (Replica(config, "fp16", A100, degree, Assumptions()).kv_per_gpu(1000) for degree in (1, 4))
    assert whole == 4 * four
    wide = replace(config, heads=32)
    assert Replica(wide, "fp16", A100, 8, Assumptions()).kv_per_gpu(1000) == four


@pytest.mark.parametrize(
    ("name", "degree", "format", "why"),
    [
        ("llama-2-70b", 8, "fp16", None),
        ("llama-2-70b", 3, "fp16", "3 GPUs do not divide 64 heads"),
        ("qwen2.5-7b", 7, "fp16", "7 GPUs and 4 KV heads do not divide one another"),
        ("llama-2-13b", 5, "fp16", "5 GPUs do not divide the MLP's 13824 columns"),
        ("llama-2-7b", 4, "fp16", None),
        ("llama-2-7b", 4, "int4", "4 GPUs cut groups of 128 among 11008 inputs"),
        ("llama-2-7b", 2, "int4", None),
    ],
)
def test_what_cannot_be_divided(name: str, degree: int, format: str, why: str | None) -> None:
    assert obstacle(subject(name).config, degree, format) == why


def test_all_reduces_take_their_time(llama_7b: DecoderConfig) -> None:
    given = replace(IDEAL, reduce_us=10.0)
    apart = Replica(llama_7b, "fp16", A100, 2, given).step(1, 1000)
    ideal = (2 * 6_738_415_616 + 1000 * 524_288) / 2 / 2039e9
    moved = 2 * 4096 / 300e9  # two GPUs: all activations of two bytes, once
    assert apart == pytest.approx(ideal + 65 * (10e-6 + moved))


@pytest.mark.parametrize(
    ("name", "degree", "measured"),
    [
        ("llama-2-7b", 1, 104.9),
        ("llama-2-7b", 2, 168.8),
        ("llama-2-7b", 4, 254),
        ("llama-2-7b", 8, 328),
        ("llama-2-70b", 8, 62.5),
    ],
)
def test_published_rates_of_decoding(name: str, degree: int, measured: float) -> None:
    """github.com/pytorch-labs/gpt-fast, README: one sequence of about 200 tokens on A100 of 80 GB."""
    step = Replica(subject(name).config, "fp16", A100, degree, Assumptions()).step(1, 200)
    assert 1 / step == pytest.approx(measured, rel=0.25)


def test_a_draft_takes_room_on_each_gpu(llama_70b: DecoderConfig, llama_7b: DecoderConfig) -> None:
    alone = Replica(llama_70b, "int4", A100, 2, Assumptions())
    beside = replace(alone, draft=llama_7b)
    draft = Replica(llama_7b, "int4", A100, 1, Assumptions())
    assert alone.room - beside.room == pytest.approx(draft.weight_bytes_per_gpu)
    assert beside.kv_per_gpu(100) - alone.kv_per_gpu(100) == draft.kv_per_gpu(100)
    assert beside.step(1, 100) == alone.step(1, 100)
