"""The names of OpenTelemetry's GenAI semantic conventions, which are in flux: v1.36, or the latest version.

Sources: open-telemetry/semantic-conventions v1.36.0 and open-telemetry/semantic-conventions-genai, docs/gen-ai.
"""

import os
from collections.abc import Mapping

PROVIDER = "headrace"
OPT_IN = "gen_ai_latest_experimental"
# Of attributes: names in v1.36, and in the latest version, which OPT_IN asks for.
ATTRIBUTES = {
    "operation": ("gen_ai.operation.name", "gen_ai.operation.name"),
    "provider": ("gen_ai.system", "gen_ai.provider.name"),
    "tier": ("gen_ai.request.model", "gen_ai.request.model"),
    "max_tokens": ("gen_ai.request.max_tokens", "gen_ai.request.max_tokens"),
    "temperature": ("gen_ai.request.temperature", "gen_ai.request.temperature"),
    "top_p": ("gen_ai.request.top_p", "gen_ai.request.top_p"),
    "top_k": ("gen_ai.request.top_k", "gen_ai.request.top_k"),
    "seed": ("gen_ai.request.seed", "gen_ai.request.seed"),
    "id": ("gen_ai.response.id", "gen_ai.response.id"),
    "model": ("gen_ai.response.model", "gen_ai.response.model"),
    "finish": ("gen_ai.response.finish_reasons", "gen_ai.response.finish_reasons"),
    "first_chunk": ("headrace.time_to_first_chunk", "gen_ai.response.time_to_first_chunk"),
    "prompt_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.input_tokens"),
    "completion_tokens": ("gen_ai.usage.output_tokens", "gen_ai.usage.output_tokens"),
    "cached_tokens": ("headrace.cached_tokens", "gen_ai.usage.cache_read.input_tokens"),
    "token_type": ("gen_ai.token.type", "gen_ai.token.type"),
    "error": ("error.type", "error.type"),
}


def attributes() -> Mapping[str, str]:
    """The names that OTEL_SEMCONV_STABILITY_OPT_IN asks for, by what this gateway calls them."""
    latest = OPT_IN in os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "").split(",")
    return {key: names[latest] for key, names in ATTRIBUTES.items()}


def in_prometheus(name: str, unit: str = "") -> str:
    """As OpenTelemetry maps names of metrics and attributes: dots become underscores, seconds are written out."""
    return name.replace(".", "_") + ("_seconds" if unit == "s" else "")
