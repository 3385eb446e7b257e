"""The plan: each format on each GPU, with the degree of tensor parallelism that costs least."""

from collections.abc import Sequence
from dataclasses import dataclass

from backends.models.config import DecoderConfig
from gateway.planning.assumptions import Assumptions
from gateway.planning.demand import Fleet, Mix, dollars_per_million, fleet, mix
from gateway.planning.formats import kv_bytes, weight_bytes
from gateway.planning.gpus import PER_HOST, Gpu
from gateway.planning.replica import GIGA, Replica, obstacle
from gateway.planning.speculation import speedup


@dataclass(frozen=True, slots=True)
class Misfit:
    """A format that does not run on a kind of GPU."""

    gpu: str
    format: str
    reason: str


@dataclass(frozen=True, slots=True)
class Row:
    """A replica and what it does. Rates that are not `mixed` are of decoding alone, with whole contexts."""

    gpu: str
    format: str
    tensor_parallel: int
    tensor_parallel_least: int  # with which the model and one sequence fit
    weights_gb_per_gpu: float
    room_gb_per_gpu: float
    sequences: int  # of the whole context, that fit
    batch: int
    ttft_s: float
    decode_limit_tokens_per_s: float  # of one sequence: bandwidth over weights and KV
    decode_tokens_per_s: float  # of one sequence, expected
    tokens_per_s: float  # of the batch
    usd_per_million_output_tokens: float | None
    mixed_batch: int
    mixed_requests_per_s: float
    usd_per_million_tokens: float | None  # of prompts and answers as assumed
    speculation_speedup: float | None  # of one sequence
    fleet: Fleet | None


def plan(
    config: DecoderConfig,
    gpus: Sequence[Gpu],
    formats: Sequence[str],
    given: Assumptions,
    draft: DecoderConfig | None = None,
    degree: int | None = None,
) -> list[Row | Misfit]:
    """A row for each GPU and format; `degree`: GPUs of a replica, None for the cheapest."""
    return [_row(config, gpu, format, given, draft, degree) for gpu in gpus for format in formats]


def _row(
    config: DecoderConfig,
    gpu: Gpu,
    format: str,
    given: Assumptions,
    draft: DecoderConfig | None,
    degree: int | None,
) -> Row | Misfit:
    try:
        fitting = _fitting(config, gpu, format, given, draft)
    except ValueError as error:
        return Misfit(gpu.name, format, str(error))
    allowed = [each for each in fitting if degree in (None, each.degree)]
    if not allowed:
        reason = obstacle(config, degree, format) if degree else None
        return Misfit(gpu.name, format, reason or _too_large(config, gpu, format, given, degree))
    best = min(allowed, key=lambda each: each.degree / mix(each).requests)
    return _described(best, fitting[0].degree, mix(best))


def _too_large(config: DecoderConfig, gpu: Gpu, format: str, given: Assumptions, degree: int | None) -> str:
    whole, sequence = weight_bytes(config, format) / GIGA, kv_bytes(config, given.context, given.kv) / GIGA
    count = f"{degree}" if degree else f"up to {PER_HOST}"
    return (
        f"{whole:.1f} GB of weights and a sequence of {sequence:.2f} GB "
        f"do not fit on {count} x {gpu.memory_gb:g} GB"
    )


def _fitting(
    config: DecoderConfig, gpu: Gpu, format: str, given: Assumptions, draft: DecoderConfig | None
) -> list[Replica]:
    """By degree, those that leave room for a sequence of the whole context. Raises ValueError."""
    replicas = [
        Replica(config, format, gpu, degree, given, draft)
        for degree in range(1, PER_HOST + 1)
        if obstacle(config, degree, format) is None
    ]
    return [each for each in replicas if each.sequences(given.context)]


def _described(replica: Replica, least: int, mixed: Mix) -> Row:
    given = replica.given
    sequences = replica.sequences(given.context)
    batch = min(sequences, given.max_batch)
    rate = batch / replica.step(batch, given.context)
    tokens = given.prompt_tokens + given.answer_tokens
    return Row(
        gpu=replica.gpu.name,
        format=replica.format,
        tensor_parallel=replica.degree,
        tensor_parallel_least=least,
        weights_gb_per_gpu=replica.weight_bytes_per_gpu / GIGA,
        room_gb_per_gpu=replica.room / GIGA,
        sequences=sequences,
        batch=batch,
        ttft_s=mixed.first_token,
        decode_limit_tokens_per_s=replica.limit(given.context),
        decode_tokens_per_s=1 / replica.step(1, given.context),
        tokens_per_s=rate,
        usd_per_million_output_tokens=dollars_per_million(replica, rate),
        mixed_batch=mixed.batch,
        mixed_requests_per_s=mixed.requests,
        usd_per_million_tokens=dollars_per_million(replica, mixed.requests * tokens),
        speculation_speedup=None if replica.draft is None else speedup(replica, 1, given.context),
        fleet=None if given.users is None else fleet(replica, given.users),
    )
