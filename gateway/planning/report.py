"""A plan as a document for programs, and that document in words."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from backends.models.config import DecoderConfig
from backends.models.size import weights
from gateway.planning.assumptions import Assumptions
from gateway.planning.demand import peak_rate
from gateway.planning.formats import FORMATS, kv_bytes, kv_bytes_per_token, weight_bytes
from gateway.planning.gpus import Gpu
from gateway.planning.plan import Misfit, Row
from gateway.planning.replica import GIGA
from gateway.planning.speculation import expected_tokens
from gateway.planning.subject import Subject


def document(
    model: Subject,
    draft: Subject | None,
    gpus: Sequence[Gpu],
    given: Assumptions,
    rows: Sequence[Row | Misfit],
) -> dict[str, Any]:
    """Everything that was worked out, in GB, seconds, tokens a second and US dollars."""
    config = model.config
    return {
        "model": _described(model),
        "weights_gb": _weights_gb(config),
        "kv_bytes_per_token": {each: kv_bytes_per_token(config, each) for each in FORMATS},
        "kv_gb_per_sequence": {each: kv_bytes(config, given.context, each) / GIGA for each in FORMATS},
        "speculation": None if draft is None else _speculation(draft, given),
        "gpus": [asdict(gpu) for gpu in gpus],
        "assumptions": asdict(given),
        "peak_requests_per_s": _peak(given),
        "plans": [{"fits": isinstance(row, Row), **asdict(row)} for row in rows],
    }


def _described(model: Subject) -> dict[str, Any]:
    config = model.config
    return {
        "name": model.name,
        "source": model.source,
        "model_type": model.kind,
        "parameters": weights(config).total,
        "layers": config.layers,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "attention": _attention(config),
        "window": config.window,
        "window_layers": len(config.window_layers),
        "context": config.max_positions,
    }


def _attention(config: DecoderConfig) -> str:
    """Multi-head, multi-query or grouped-query."""
    return {config.heads: "MHA", 1: "MQA"}.get(config.kv_heads, "GQA")


def _weights_gb(config: DecoderConfig) -> dict[str, float | None]:
    """None for a format that the shape does not have."""
    found: dict[str, float | None] = {}
    for each in FORMATS:
        try:
            found[each] = weight_bytes(config, each) / GIGA
        except ValueError:
            found[each] = None
    return found


def _speculation(draft: Subject, given: Assumptions) -> dict[str, Any]:
    return {
        "draft": _described(draft),
        "acceptance": given.acceptance,
        "draft_tokens": given.draft_tokens,
        "expected_tokens": expected_tokens(given.acceptance, given.draft_tokens),
    }


def _peak(given: Assumptions) -> float | None:
    return None if given.users is None else peak_rate(given.users, given.requests_per_user, given.peak)


def words(told: Mapping[str, Any]) -> list[str]:
    """The document for people."""
    plans = told["plans"]
    fitting, others = ([each for each in plans if each["fits"] == fits] for fits in (True, False))
    parts = [_about(told), [_assumed(told)], _gpus(told["gpus"])]
    if fitting:
        parts.append(_replicas(fitting))
    if fitting and told["peak_requests_per_s"] is not None:
        parts.append(_fleets(told, fitting))
    if others:
        parts.append([f"{each['gpu']:9} {each['format']:6} {each['reason']}" for each in others])
    return "\n\n".join("\n".join(part) for part in parts).split("\n")


def _about(told: Mapping[str, Any]) -> list[str]:
    model = told["model"]
    lines = [
        f"{model['name']} (from {model['source']}): {model['parameters'] / GIGA:.2f} 10^9 parameters, "
        f"{model['layers']} layers, {model['heads']} heads, {model['kv_heads']} KV heads ({model['attention']})",
        f"weights, GB: {_by_format(told['weights_gb'], 1, 2)}",
        f"KV, GB per 1,000 tokens: {_by_format(told['kv_bytes_per_token'], 1e-6, 3)}",
    ]
    if model["window_layers"]:
        given = told["assumptions"]
        whole = told["kv_bytes_per_token"][given["kv"]] * given["context"] / GIGA
        lines.append(
            f"{model['window_layers']} layers see {model['window']} tokens and are counted with no more: "
            f"{told['kv_gb_per_sequence'][given['kv']]:.3f} GB a sequence; an engine that keeps all needs {whole:.3f}"
        )
    if told["speculation"] is not None:
        spec = told["speculation"]
        lines.append(
            f"drafts of {spec['draft']['name']}: E({spec['acceptance']:g}, {spec['draft_tokens']}) = "
            f"{spec['expected_tokens']:.2f} tokens for each step that verifies them"
        )
    return lines


def _by_format(values: Mapping[str, float | None], scale: float, digits: int) -> str:
    return ", ".join(
        f"{name} {'-' if value is None else format(value * scale, f'.{digits}f')}"
        for name, value in values.items()
    )


def _assumed(told: Mapping[str, Any]) -> str:
    given = told["assumptions"]
    unused = set()
    if given["users"] is None:
        unused |= {"users", "requests_per_user", "peak"}
    if told["speculation"] is None:
        unused |= {"acceptance", "draft_tokens"}
    options = [f"--{name.replace('_', '-')} {value}" for name, value in given.items() if name not in unused]
    return f"assumed: {' '.join(options)}"


def _gpus(gpus: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        f"{'GPU':9} {'GB':>5} {'GB/s':>6} {'fp16':>7} {'int8':>7} {'fp8':>7}  dense TFLOPS {'$/hour':>8}"
    ]
    for gpu in gpus:
        rates = " ".join(
            f"{gpu['rates'][kind]:7,.0f}" if kind in gpu["rates"] else f"{'-':>7}"
            for kind in ("fp16", "int8", "fp8")
        )
        lines.append(
            f"{gpu['name']:9} {gpu['memory_gb']:5} {gpu['bandwidth']:6,} {rates} {_dollars(gpu['price'], 22, 3)}"
        )
    return lines


def _replicas(plans: Sequence[Mapping[str, Any]]) -> list[str]:
    """TP: GPUs of a replica, and the fewest that hold the model. `one` is a single sequence beside its limit, `all` the
    batch that fits; dollars are per million tokens, of answers alone and of prompts and answers together."""
    drafts = any(each["speculation_speedup"] is not None for each in plans)
    lines = [
        f"{'GPU':9} {'format':6} {'TP':>2} {'least':>5} {'sequences':>9} {'TTFT s':>7} {'one/s':>7} {'limit':>7} "
        f"{'all/s':>8} {'$/M out':>8} {'$/M both':>8}{'  drafts' if drafts else ''}"
    ]
    for each in plans:
        gain = f" {each['speculation_speedup']:6.2f}x" if drafts else ""
        lines.append(
            f"{each['gpu']:9} {each['format']:6} {each['tensor_parallel']:2} {each['tensor_parallel_least']:5} "
            f"{each['sequences']:9,} {each['ttft_s']:7.3f} {each['decode_tokens_per_s']:7.1f} "
            f"{each['decode_limit_tokens_per_s']:7.1f} {each['tokens_per_s']:8,.0f} "
            f"{_dollars(each['usd_per_million_output_tokens'], 8, 3)} "
            f"{_dollars(each['usd_per_million_tokens'], 8, 3)}{gain}"
        )
    return lines


def _fleets(told: Mapping[str, Any], plans: Sequence[Mapping[str, Any]]) -> list[str]:
    given = told["assumptions"]
    lines = [
        f"{given['users']:,} users a day: {told['peak_requests_per_s']:,.1f} requests/s at the peak",
        f"{'GPU':9} {'format':6} {'replicas':>8} {'GPUs':>6} {'or prefill + decode':>20} {'in flight':>9} "
        f"{'$/month':>12}",
    ]
    for each in plans:
        fleet = each["fleet"]
        pools = f"{fleet['prefill_gpus']:,} + {fleet['decode_gpus']:,}"
        lines.append(
            f"{each['gpu']:9} {each['format']:6} {fleet['replicas']:8,} {fleet['gpus']:6,} {pools:>20} "
            f"{fleet['in_flight']:9,.0f} {_dollars(fleet['usd_per_month'], 12, 0)}"
        )
    return lines


def _dollars(value: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width},.{digits}f}"
