"""The `vllm:*` series of the engines, from what they report of themselves and of their generations.

Names and buckets are those of vLLM 0.33, so that its dashboards and Kubernetes inference gateways can read them.
"""

from collections.abc import Mapping, Sequence
from typing import get_args

from prometheus_client import CollectorRegistry

from backends.backend import Timings, Usage
from backends.wire import GAPS, REFUSALS, STEP_SIZES, EngineConfig, FinishReason, Load
from gateway.schedule_metrics import ScheduleMetrics
from gateway.series import Counter, Gauge, Histogram
from gateway.speculation_metrics import SpeculationMetrics
from gateway.tallied import TalliedHistogram

LATENCY_BUCKETS = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
PER_TOKEN_BUCKETS = GAPS

# What dashboards of years ago ask for.
OLD_NAMES = {
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
    "vllm:num_requests_running": "vllm:num_running_seqs",
}

# Fields of `Load` that count since the engine's start, as counters that outlive the engine.
ENGINE_COUNTERS = {
    "prefix_queries": ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_hits": ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    "prompt_tokens": ("vllm:prompt_tokens", "Prompt tokens of the requests that were run."),
    "cached_tokens": ("vllm:prompt_tokens_cached", "Prompt tokens that were not computed again."),
    "generation_tokens": ("vllm:generation_tokens", "Tokens generated."),
    "preemptions": ("vllm:num_preemptions", "Sequences that lost their blocks to others."),
    "drafts": ("vllm:spec_decode_num_drafts", "Drafts verified."),
    "drafted_tokens": ("vllm:spec_decode_num_draft_tokens", "Tokens of these drafts."),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens", "Those of them that were accepted."),
    "steps": ("headrace_engine_steps", "Steps of the engine."),
    "step_tokens": ("headrace_engine_step_tokens", "Tokens run in all steps."),
    "step_rows": ("headrace_engine_step_rows", "Rows run in all steps."),
    "streams": ("headrace_engine_streams", "Interactive answers of two tokens and more."),
    "streams_at_pace": ("headrace_engine_streams_at_pace", "Those of them with 20 tokens a second."),
}
ENGINE_TIMES = {
    "first_token": ("vllm:time_to_first_token_seconds", FIRST_TOKEN_BUCKETS, "From arrival to the first token."),
    "per_token": (
        "vllm:request_time_per_output_token_seconds", PER_TOKEN_BUCKETS, "Mean time per token after the first.",
    ),
    "whole": ("vllm:e2e_request_latency_seconds", LATENCY_BUCKETS, "From arrival to the last token."),
    "queue": ("vllm:request_queue_time_seconds", LATENCY_BUCKETS, "From arrival to the first step."),
    "prefill": ("vllm:request_prefill_time_seconds", LATENCY_BUCKETS, "From the first step to the first token."),
    "decode": ("vllm:request_decode_time_seconds", LATENCY_BUCKETS, "From the first to the last token."),
    "inference": ("vllm:request_inference_time_seconds", LATENCY_BUCKETS, "From the first step to the last token."),
}  # fmt: skip
SIZE_BUCKETS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
ENGINE_SIZES = {
    "prompt_tokens": ("vllm:request_prompt_tokens", "Tokens of one prompt."),
    "completion_tokens": ("vllm:request_generation_tokens", "Tokens of one answer."),
}
ENGINE_WISHES = {
    "n": ("vllm:request_params_n", (1, 2, 5, 10, 20), "Answers asked for to one prompt."),
    "max_tokens": (
        "vllm:request_params_max_tokens",
        SIZE_BUCKETS,
        "Tokens of an answer at most, where it was said.",
    ),
}
# Fields of `Load` with counts by size, and that of their sum.
ENGINE_TALLIES = {
    "gaps": (
        "gap_seconds",
        GAPS,
        "vllm:inter_token_latency_seconds",
        "From one token of an answer to the next.",
    ),
    "step_sizes": ("step_tokens", STEP_SIZES, "vllm:iteration_tokens_total", "Tokens run in one step."),
}
ENGINE_LABELS = ("model_name", "engine")


class EngineMetrics:
    """The series of engines, whose own counters begin again at 0 with each start of their process."""

    def __init__(self, registry: CollectorRegistry, engines: Mapping[str, str]) -> None:
        """`engines`: by name the model.

        Of several processes one is told of loads, the gauges of the others stay at 0: the largest is the true one.
        """
        self.names = tuple(engines)
        self._models = dict(engines)
        self._seen: dict[str, Load] = {}

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(
                name, text, (*ENGINE_LABELS, *labels), registry=registry, multiprocess_mode="livemax"
            )

        self._running = gauge("vllm:num_requests_running", "Sequences in the batch.")
        self._waiting = gauge("vllm:num_requests_waiting", "Sequences in the queue.")
        self._waiting_by_reason = gauge(
            "vllm:num_requests_waiting_by_reason",
            "Those in the queue: for room in the batch (capacity), or for their grammar (deferred).",
            "reason",
        )
        self._usage = gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use by sequences, 0 to 1.")
        self._config = gauge(
            "vllm:cache_config_info",
            "The KV cache: 1, with its measures as labels.",
            "block_size",
            "num_gpu_blocks",
        )
        self._finished = Counter(
            "vllm:request_success", "Requests ended, by reason.", (*ENGINE_LABELS, "finished_reason"),
            registry=registry,
        )  # fmt: skip
        self._rejections = Counter(
            "vllm:admission_rejections", "Requests that found no place in the queue, by what there was too much of.",
            ("model_name", "reason"), registry=registry,
        )  # fmt: skip
        self._counters = {
            field: Counter(name, text, ENGINE_LABELS, registry=registry)
            for field, (name, text) in ENGINE_COUNTERS.items()
        }
        self._times = {
            key: Histogram(name, text, ENGINE_LABELS, buckets=buckets, registry=registry)
            for key, (name, buckets, text) in ENGINE_TIMES.items()
        }
        self._sizes = {
            field: Histogram(name, text, ENGINE_LABELS, buckets=SIZE_BUCKETS, registry=registry)
            for field, (name, text) in ENGINE_SIZES.items()
        }
        self._wishes = {
            key: Histogram(name, text, ENGINE_LABELS, buckets=buckets, registry=registry)
            for key, (name, buckets, text) in ENGINE_WISHES.items()
        }
        self._tallies = {
            field: TalliedHistogram(name, text, ENGINE_LABELS, buckets=ends, registry=registry)
            for field, (_, ends, name, text) in ENGINE_TALLIES.items()
        }
        self._schedule = ScheduleMetrics(registry, engines)
        self._speculation = SpeculationMetrics(registry, engines)
        for engine in engines:
            self._start_at_zero(engine)

    def _start_at_zero(self, engine: str) -> None:
        self.idle(engine)
        sizes = (*self._sizes.values(), *self._wishes.values())
        for series in (*self._counters.values(), *self._times.values(), *sizes, *self._tallies.values()):
            series.labels(self._models[engine], engine)
        for reason in REFUSALS:
            self._rejections.labels(self._models[engine], reason)
        for reason in get_args(FinishReason):
            self._finished.labels(self._models[engine], engine, reason)

    def describe(self, config: EngineConfig) -> None:
        """What an engine is started with."""
        labels = self._models[config.name], config.name
        self._config.labels(*labels, str(config.block_size), str(config.kv_blocks)).set(1)
        self._schedule.describe(config.name, config.bands)
        self._speculation.describe(config.name, config.speculation)

    def idle(self, engine: str) -> None:
        """Nothing runs in an engine that is not there. Names that are no engine's are ignored."""
        if engine in self._models:
            for gauge in (self._running, self._waiting, self._usage):
                gauge.labels(self._models[engine], engine).set(0)
            self._wait(engine, 0, 0)
            self._schedule.idle(engine)

    def load(self, load: Load) -> None:
        labels = (self._models[load.engine], load.engine)
        self._running.labels(*labels).set(load.running)
        self._waiting.labels(*labels).set(load.waiting)
        self._wait(load.engine, load.waiting - load.deferred, load.deferred)
        used = load.blocks_total - load.blocks_free - load.blocks_cached
        self._usage.labels(*labels).set(used / load.blocks_total if load.blocks_total else 0)
        before = self._seen.get(load.engine)
        if before is not None and before.incarnation != load.incarnation:
            before = None
        for field, counter in self._counters.items():
            counter.labels(*labels).inc(getattr(load, field) - (getattr(before, field) if before else 0))
        for reason in get_args(FinishReason):
            seen = before.finished.get(reason, 0) if before else 0
            self._finished.labels(*labels, reason).inc(load.finished.get(reason, 0) - seen)
        for reason in REFUSALS:
            seen = before.refused.get(reason, 0) if before else 0
            self._rejections.labels(labels[0], reason).inc(load.refused.get(reason, 0) - seen)
        for field, histogram in self._tallies.items():
            total = ENGINE_TALLIES[field][0]
            counts = _risen(getattr(load, field), getattr(before, field) if before else ())
            if counts:
                since = getattr(before, total) if before else 0
                histogram.labels(*labels).tally(counts, getattr(load, total) - since)
        self._schedule.load(load, before)
        self._speculation.load(load, before)
        self._seen[load.engine] = load

    def _wait(self, engine: str, capacity: int, deferred: int) -> None:
        labels = self._models[engine], engine
        self._waiting_by_reason.labels(*labels, "capacity").set(capacity)
        self._waiting_by_reason.labels(*labels, "deferred").set(deferred)

    def generation(self, engine: str, usage: Usage, timings: Timings, n: int, max_tokens: int | None) -> None:
        labels = (self._models[engine], engine)
        for key, seconds in durations(timings, usage.completion_tokens).items():
            self._times[key].labels(*labels).observe(seconds)
        for field, sizes in self._sizes.items():
            sizes.labels(*labels).observe(getattr(usage, field))
        self._wishes["n"].labels(*labels).observe(n)
        if max_tokens is not None:
            self._wishes["max_tokens"].labels(*labels).observe(max_tokens)


def _risen(now: Sequence[int], before: Sequence[int]) -> list[int]:
    """By how much each count has grown."""
    return [count - seen for count, seen in zip(now, before or [0] * len(now), strict=True)]


def durations(timings: Timings, tokens: int) -> dict[str, float]:
    """Seconds by key of `ENGINE_TIMES`, of the stages that a generation of `tokens` tokens has reached."""
    spans = {
        "first_token": (timings.arrived, timings.first_token),
        "whole": (timings.arrived, timings.finished),
        "queue": (timings.arrived, timings.scheduled),
        "prefill": (timings.scheduled, timings.first_token),
        "decode": (timings.first_token, timings.finished),
        "inference": (timings.scheduled, timings.finished),
    }
    # The clock is the wall's, which may be set back.
    seconds = {
        key: max(0.0, end - begin)
        for key, (begin, end) in spans.items()
        if begin is not None and end is not None
    }
    if "decode" in seconds and tokens > 1:
        seconds["per_token"] = seconds["decode"] / (tokens - 1)
    return seconds
