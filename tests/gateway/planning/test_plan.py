"""Which degree of parallelism a plan takes, and what it says where nothing fits."""

import pytest

from backends.models.config import DecoderConfig
from gateway.planning.assumptions import Assumptions
from gateway.planning.formats import FORMATS
from gateway.planning.gpus import COMPARED, GPUS, chosen
from gateway.planning.plan import Misfit, Row, plan

GIVEN = Assumptions(users=10_000)
TOO_LARGE = "138.0 GB of weights and a sequence of 1.34 GB do not fit on"


def one(config: DecoderConfig, gpu: str, format: str, degree: int | None = None) -> Row | Misfit:
    [row] = plan(config, [GPUS[gpu]], [format], GIVEN, degree=degree)
    return row


def test_all_formats_on_all_gpus(llama_7b: DecoderConfig) -> None:
    rows = plan(llama_7b, chosen([], []), FORMATS, GIVEN)
    assert [(row.gpu, row.format) for row in rows] == [
        (gpu, format) for gpu in COMPARED for format in FORMATS
    ]
    assert all(isinstance(row, Row) for row in rows)


def test_the_cheapest_degree_is_taken_and_the_least_is_told(llama_70b: DecoderConfig) -> None:
    best = one(llama_70b, "a100-80g", "fp16")
    assert isinstance(best, Row)
    assert best.tensor_parallel_least == 2
    others = [one(llama_70b, "a100-80g", "fp16", degree) for degree in (2, 4, 8)]
    costs = [row.usd_per_million_tokens or 0 for row in others if isinstance(row, Row)]
    assert len(costs) == 3
    assert best.usd_per_million_tokens == min(costs)
    assert [row.tensor_parallel for row in others if isinstance(row, Row)] == [2, 4, 8]


@pytest.mark.parametrize(
    ("gpu", "format", "degree", "reason"),
    [
        ("a100-80g", "fp16", 1, f"{TOO_LARGE} 1 x 80 GB"),
        ("h200", "fp16", 1, f"{TOO_LARGE} 1 x 141 GB"),
        ("h100", "fp16", 3, "3 GPUs do not divide 64 heads"),
    ],
)
def test_what_does_not_fit_says_why(
    gpu: str, format: str, degree: int | None, reason: str, llama_70b: DecoderConfig
) -> None:
    assert one(llama_70b, gpu, format, degree) == Misfit(gpu, format, reason)


def test_no_degree_may_fit(llama_70b: DecoderConfig) -> None:
    given = Assumptions(memory_share=0.5)
    [row] = plan(llama_70b, [GPUS["l4"]], ["fp16"], given)
    assert row == Misfit("l4", "fp16", f"{TOO_LARGE} up to 8 x 24 GB")


def test_faster_memory_decodes_faster(llama_7b: DecoderConfig) -> None:
    rows = [one(llama_7b, gpu, "fp16", 1) for gpu in ("l4", "a100-80g", "h100", "h200", "b200")]
    rates = [row.decode_tokens_per_s for row in rows if isinstance(row, Row)]
    assert len(rates) == 5 and rates == sorted(rates)


def test_a_rate_is_below_its_limit(llama_7b: DecoderConfig) -> None:
    for row in plan(llama_7b, list(GPUS.values()), FORMATS, GIVEN):
        assert isinstance(row, Row)
        assert row.decode_tokens_per_s < row.decode_limit_tokens_per_s
        assert row.decode_tokens_per_s < row.tokens_per_s < row.batch * row.decode_tokens_per_s * 1.001
        assert row.fleet is not None and row.speculation_speedup is None
