"""Writes the dashboards: `python deploy/grafana/build.py`. Each panel is one row here; Grafana's JSON repeats the rest.

A panel is (title, what it says, unit, kind, width of 24, queries), a query (PromQL, legend). In PromQL, `{}` and a `{`
before further labels get the dashboard's own choice of job and instance.
"""

import json
import re
from pathlib import Path
from typing import Any

Query = tuple[str, str]
Panel = tuple[str, str, str, str, int, list[Query]]

ASKED = 'endpoint=~"chat|completions|responses|messages"'
CHOSEN = 'job=~"$job",instance=~"$instance"'
HEIGHTS = {"stat": 4, "timeseries": 8, "bargauge": 8}
RATE = "[$__rate_interval]"


def p(share: float, name: str, by: str, labels: str = "") -> str:
    """A quantile of a histogram, for each value of a label (or of none)."""
    along = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, sum by ({along}) (rate({name}_bucket{{{labels}}}{RATE})))"


def rate(name: str, by: str, labels: str = "") -> str:
    return f"sum by ({by}) (rate({name}{{{labels}}}{RATE}))"


FIRST, PER_TOKEN = "headrace_time_to_first_token_seconds", "headrace_time_per_output_token_seconds"
CALLS = f"sum(rate(headrace_requests_total{{{ASKED}}}{RATE}))"
FAILED = f'(sum(rate(headrace_requests_total{{{ASKED},status=~"5.."}}{RATE})) or vector(0))'
BROKEN = f'(sum(rate(headrace_requests_total{{{ASKED},status="200",error_code!="none"}}{RATE})) or vector(0))'
FIRST_SENT = 'reason!~"failover|escalation"'
DECIDED = f"sum(rate(headrace_route_decisions_total{{{FIRST_SENT}}}{RATE}))"
SAVED = "1 - sum({of}(headrace_cost_total{{}}{over})) / sum({of}(headrace_cost_largest_tier_total{{}}{over}))"

OVERVIEW: list[Panel] = [
    ("Requests", "Calls for an answer that ended.", "reqps", "stat", 5, [(CALLS, "")]),
    ("Failed", "Share answered with 5xx.", "percentunit", "stat", 5, [(f"{FAILED} / {CALLS}", "")]),
    ("Broken streams", "Share that broke after a status of 200.", "percentunit", "stat", 5, [
        (f"{BROKEN} / {CALLS}", "")]),
    ("First token in 500 ms", "Share of answers in the last hour; the objective is 95%.", "percentunit", "stat", 5, [
        (f'sum(rate({FIRST}_bucket{{le="0.5"}}[1h])) / sum(rate({FIRST}_count{{}}[1h]))', "")]),
    ("Decode speed", "Tokens per second of one answer, on average.", "none", "stat", 4, [
        (f"sum(rate({PER_TOKEN}_count{{}}{RATE})) / sum(rate({PER_TOKEN}_sum{{}}{RATE}))", "")]),
    ("Time to first token", "From arrival to the first text.", "s", "timeseries", 12, [
        (p(0.5, FIRST, "tier"), "{{tier}} p50"), (p(0.95, FIRST, "tier"), "{{tier}} p95")]),
    ("Time per output token", "Mean of an answer, after its first text.", "s", "timeseries", 12, [
        (p(0.5, PER_TOKEN, "tier"), "{{tier}} p50"), (p(0.95, PER_TOKEN, "tier"), "{{tier}} p95")]),
    ("Whole requests", "From arrival to the end, errors included.", "s", "timeseries", 12, [
        (p(0.5, "headrace_request_seconds", "tier"), "{{tier}} p50"),
        (p(0.95, "headrace_request_seconds", "tier"), "{{tier}} p95")]),
    ("Requests by status", "", "reqps", "timeseries", 12, [
        (rate("headrace_requests_total", "status", ASKED), "{{status}}")]),
    ("Error codes", "Also of streams that broke after a status of 200.", "reqps", "timeseries", 12, [
        (rate("headrace_requests_total", "error_code", 'error_code!="none"'), "{{error_code}}")]),
    ("Answers cut short", "", "reqps", "timeseries", 12, [
        (rate("headrace_stream_aborts_total", "reason"), "{{reason}}")]),
    ("Running", "Generations that the gateway has running there.", "none", "timeseries", 8, [
        ("sum by (backend) (headrace_backend_inflight{})", "{{backend}}")]),
    ("Up", "1 where an attempt now has a chance; below, open breakers.", "none", "timeseries", 8, [
        ("min by (backend) (headrace_backend_up{})", "{{backend}}"),
        ("-max by (backend) (headrace_breaker_open{})", "{{backend}} breaker")]),
    ("State", "0 where a store does not answer; draining is 1 while the gateway leaves.", "none", "timeseries", 8, [
        ("min by (kind) (headrace_state_backend_up{})", "{{kind}}"), ("max(headrace_draining{})", "draining")]),
    ("Configuration", "Its version, and tries to change it that failed in this range.", "none", "timeseries", 12, [
        ("max by (instance) (headrace_config_version{})", "{{instance}} version"),
        ('sum(increase(headrace_config_reloads_total{result="failure"}[$__range]))', "failed")]),
    ("Records and spans lost", "The queue or the disk was full, or the collector has not taken them.", "cps",
     "timeseries", 12, [
        (rate("headrace_records_lost_total", "reason"), "records {{reason}}"),
        (rate("headrace_spans_lost_total", "reason"), "spans {{reason}}")]),
    ("Event loop lag", "How late the gateway runs a timer.", "s", "timeseries", 12, [
        (p(0.5, "headrace_event_loop_lag_seconds", ""), "p50"),
        (p(0.99, "headrace_event_loop_lag_seconds", ""), "p99")]),
    ("Sessions", "", "reqps", "timeseries", 12, [(rate("headrace_sessions_total", "event"), "{{event}}")]),
]  # fmt: skip

CASCADE: list[Panel] = [
    ("Saved", "Share of the money that the largest tier would have cost, in this range.", "percentunit", "stat", 6, [
        (SAVED.format(of="increase", over="[$__range]"), "")]),
    ("Spent", "In this range, in the money of the price list.", "none", "stat", 6, [
        ("sum(increase(headrace_cost_total{}[$__range]))", "")]),
    ("Prompt cached", "Share of the prompt tokens that were not computed again.", "percentunit", "stat", 6, [
        ('sum(rate(headrace_tokens_total{kind="cached"}' + RATE + ')) / sum(rate(headrace_tokens_total{kind="prompt"}'
         + RATE + "))", "")]),
    ("Failed over", "Share of requests that another tier had to take over.", "percentunit", "stat", 6, [
        ('sum(rate(headrace_route_decisions_total{reason="failover"}' + RATE
         + f")) / {DECIDED}", "")]),
    ("Escalations", "Answers found wanting, for which a dearer tier was asked.", "reqps", "timeseries", 8, [
        (rate("headrace_escalations_total", "from_tier, to_tier"), "{{from_tier}} to {{to_tier}}")]),
    ("Held back", "From the first token until it was decided whether to keep the answer.", "s", "timeseries", 8, [
        (p(0.5, "headrace_holdback_seconds", "tier"), "{{tier}} p50"),
        (p(0.95, "headrace_holdback_seconds", "tier"), "{{tier}} p95")]),
    ("Judged", "Share of the answers held back of which something could be said.", "percentunit", "timeseries", 8, [
        (rate("headrace_holdback_seconds_count", "tier", 'judged="yes"') + " / "
         + rate("headrace_holdback_seconds_count", "tier"), "{{tier}}")]),
    ("Tokens by outcome", "Of prompts and answers of all attempts; escalated ones were made twice.", "none",
     "timeseries", 12, [
        (rate("headrace_ledger_tokens_total", "outcome", 'kind!="cached"'), "{{outcome}}")]),
    ("Read in advance", "Prompts that a dearer tier began to read, used or not.", "reqps", "timeseries", 12, [
        (rate("headrace_warms_total", "tier, used"), "{{tier}} used: {{used}}")]),
    ("Where requests go", "To which tier they were sent first.", "reqps", "timeseries", 12, [
        (rate("headrace_route_decisions_total", "tier", FIRST_SENT), "{{tier}}")]),
    ("Why", "", "reqps", "timeseries", 12, [
        (rate("headrace_route_decisions_total", "tier, reason"), "{{tier}} {{reason}}")]),
    ("Spent per hour", "", "none", "timeseries", 12, [
        ("3600 * " + rate("headrace_cost_total", "tier"), "{{tier}}"),
        (f"3600 * sum(rate(headrace_cost_largest_tier_total{{}}{RATE}))", "all on the largest tier")]),
    ("Saved over time", "", "percentunit", "timeseries", 12, [(SAVED.format(of="rate", over=RATE), "saved")]),
    ("Tokens", "Cached ones are part of the prompt.", "none", "timeseries", 12, [
        (rate("headrace_tokens_total", "tier, kind"), "{{tier}} {{kind}}")]),
    ("Shadow policies", "Share of the routes for auto on which each agrees with the live one.", "percentunit",
     "timeseries", 12, [
        (rate("headrace_shadow_decisions_total", "policy", 'agrees="yes"') + " / "
         + rate("headrace_shadow_decisions_total", "policy"), "{{policy}}")]),
    ("Time of one assessment", "", "s", "timeseries", 12, [
        (p(0.5, "headrace_classifier_seconds", ""), "p50"), (p(0.99, "headrace_classifier_seconds", ""), "p99")]),
]  # fmt: skip

ENGINES: list[Panel] = [
    ("Running and waiting", "Sequences in the batch, and in the queue.", "none", "timeseries", 12, [
        ("vllm:num_requests_running{}", "{{engine}} running"), ("vllm:num_requests_waiting{}", "{{engine}} waiting")]),
    ("KV cache in use", "Share of the blocks that sequences use, 0 to 1.", "percentunit", "timeseries", 12, [
        ("vllm:kv_cache_usage_perc{}", "{{engine}}")]),
    ("Prefix cache hits", "Share of the prompt tokens looked up.", "percentunit", "timeseries", 12, [
        (rate("vllm:prefix_cache_hits_total", "engine") + " / " + rate("vllm:prefix_cache_queries_total", "engine"),
         "{{engine}}")]),
    ("Tokens per second", "Prompts less what was cached, and answers.", "none", "timeseries", 12, [
        (rate("vllm:prompt_tokens_total", "engine") + " - " + rate("vllm:prompt_tokens_cached_total", "engine"),
         "{{engine}} prompt"),
        (rate("vllm:generation_tokens_total", "engine"), "{{engine}} answer")]),
    ("Queue", "Tokens that wait, and batch sequences that stand back for interactive ones.", "none", "timeseries", 12, [
        ("headrace_engine_waiting_tokens{}", "{{engine}} tokens waiting"),
        ("headrace_engine_paused{}", "{{engine}} standing back")]),
    ("First tokens in time", "Share of interactive answers begun within their band's target; the objective is 95%.",
     "percentunit", "timeseries", 12, [
        (rate("headrace_engine_first_tokens_total", "engine, band", 'in_time="true"') + " / "
         + rate("headrace_engine_first_tokens_total", "engine, band"), "{{engine}} band {{band}}")]),
    ("Band in force", "Counted from 0; each allows more rows than the one before.", "none", "timeseries", 12, [
        ("headrace_engine_band{}", "{{engine}}")]),
    ("Tokens between two", "Time from one token of an answer to the next.", "s", "timeseries", 12, [
        (p(0.5, "vllm:inter_token_latency_seconds", "engine"), "{{engine}} p50"),
        (p(0.99, "vllm:inter_token_latency_seconds", "engine"), "{{engine}} p99")]),
    ("Answers at pace", "Share of interactive answers with 20 tokens per second.", "percentunit", "timeseries", 12, [
        (rate("headrace_engine_streams_at_pace_total", "engine") + " / "
         + rate("headrace_engine_streams_total", "engine"), "{{engine}}")]),
    ("Turned away", "Requests that found no place in the queue, and of what too much waits there.", "reqps",
     "timeseries", 12, [
        (rate("vllm:admission_rejections_total", "model_name, reason"), "{{model_name}} {{reason}}")]),
    ("Time in the queue", "From arrival to the first step.", "s", "timeseries", 8, [
        (p(0.95, "vllm:request_queue_time_seconds", "engine"), "{{engine}} p95")]),
    ("Prefill", "From the first step to the first token.", "s", "timeseries", 8, [
        (p(0.95, "vllm:request_prefill_time_seconds", "engine"), "{{engine}} p95")]),
    ("Decode", "From the first to the last token.", "s", "timeseries", 8, [
        (p(0.95, "vllm:request_decode_time_seconds", "engine"), "{{engine}} p95")]),
    ("Fill of a step", "Tokens and rows in one step, on average.", "none", "timeseries", 12, [
        (rate("headrace_engine_step_tokens_total", "engine") + " / " + rate("headrace_engine_steps_total", "engine"),
         "{{engine}} tokens"),
        (rate("headrace_engine_step_rows_total", "engine") + " / " + rate("headrace_engine_steps_total", "engine"),
         "{{engine}} rows")]),
    ("Drafts accepted", "Share of the drafted tokens, and those of a step on average.", "none", "timeseries", 12, [
        (rate("vllm:spec_decode_num_accepted_tokens_total", "engine") + " / "
         + rate("vllm:spec_decode_num_draft_tokens_total", "engine"), "{{engine}} accepted"),
        (rate("vllm:spec_decode_num_draft_tokens_total", "engine") + " / "
         + rate("headrace_engine_steps_total", "engine"), "{{engine}} drafted")]),
    ("Gates of speculation", "Tokens drafted at a time, 0 where it does not pay.", "none", "timeseries",
     12, [("headrace_speculation_draft_tokens{}", "{{engine}} {{method}} {{task}}")]),
    ("Sizes of requests", "Tokens of one prompt and of one answer.", "none", "timeseries", 12, [
        (p(0.5, "vllm:request_prompt_tokens", "engine"), "{{engine}} prompt p50"),
        (p(0.5, "vllm:request_generation_tokens", "engine"), "{{engine}} answer p50")]),
    ("Ended", "", "reqps", "timeseries", 8, [
        (rate("vllm:request_success_total", "finished_reason"), "{{finished_reason}}")]),
    ("Preempted", "Sequences that lost their blocks to others.", "reqps", "timeseries", 8, [
        (rate("vllm:num_preemptions_total", "engine"), "{{engine}}")]),
    ("Restarts", "In this range.", "none", "timeseries", 8, [
        ("sum by (engine) (increase(headrace_engine_restarts_total{}[$__range]))", "{{engine}}")]),
]  # fmt: skip

TENANTS: list[Panel] = [
    ("Tokens of the busiest", "Prompts and answers, per second.", "none", "timeseries", 12, [
        ('topk(10, sum by (tenant) (rate(headrace_tokens_total{kind!="cached"}' + RATE + ")))", "{{tenant}}")]),
    ("Money of the dearest", "Per hour, in that of the price list.", "none", "timeseries", 12, [
        ("topk(10, 3600 * " + rate("headrace_cost_total", "tenant") + ")", "{{tenant}}")]),
    ("Spent in this range", "", "none", "bargauge", 12, [
        ("sort_desc(topk(20, sum by (tenant) (increase(headrace_cost_total{}[$__range]))))", "{{tenant}}")]),
    ("Tiers that they use", "Tokens of answers in this range.", "none", "bargauge", 12, [
        ('topk(20, sum by (tenant, tier) (increase(headrace_tokens_total{kind="completion"}[$__range])))',
         "{{tenant}} {{tier}}")]),
    ("Budgets", "What is gone of day's and month's.", "none", "timeseries", 12, [
        ("topk(10, max by (tenant, period) (headrace_budget_spent{}))", "{{tenant}} {{period}}")]),
    ("Reservations", "Taken, and refused by which limit; degraded: by its own counts.", "reqps", "timeseries", 12, [
        (rate("headrace_ratelimit_decisions_total", "limit, decision"), "{{limit}} {{decision}}")]),
    ("Cached share of prompts", "", "percentunit", "timeseries", 12, [
        (rate("headrace_tokens_total", "tenant", 'kind="cached"') + " / "
         + rate("headrace_tokens_total", "tenant", 'kind="prompt"'), "{{tenant}}")]),
]  # fmt: skip

DASHBOARDS = {
    "overview": ("Headrace: overview and objectives", OVERVIEW),
    "cascade": ("Headrace: cascade and cost", CASCADE),
    "engines": ("Headrace: engines and KV cache", ENGINES),
    "tenants": ("Headrace: tenants", TENANTS),
}


def chosen(query: str) -> str:
    """With the dashboard's choice in every selector."""
    return re.sub(r"\{([^}]*)\}", lambda found: f"{{{','.join(filter(None, (CHOSEN, found[1])))}}}", query)


def dashboard(name: str, title: str, panels: list[Panel]) -> dict[str, Any]:
    return {
        "uid": f"headrace-{name}",
        "title": title,
        "tags": ["headrace"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["headrace"], "title": "Headrace", "asDropdown": True}],
        "templating": {"list": variables()},
        "panels": placed(panels),
    }


def variables() -> list[dict[str, Any]]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    every = {
        "type": "query",
        "datasource": source,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "refresh": 2,
    }
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        every | {"name": "job", "label": "Job", "query": "label_values(headrace_draining, job)"},
        every
        | {
            "name": "instance",
            "label": "Gateway",
            "query": 'label_values(headrace_draining{job=~"$job"}, instance)',
        },
    ]


def placed(panels: list[Panel]) -> list[dict[str, Any]]:
    """From the left to the right, row by row."""
    made, x, y, height = [], 0, 0, 0
    for number, (title, says, unit, kind, width, queries) in enumerate(panels, 1):
        if x + width > 24:
            x, y = 0, y + height
        height = HEIGHTS[kind]
        made.append({
            "id": number,
            "title": title,
            "description": says,
            "type": kind,
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "gridPos": {"x": x, "y": y, "w": width, "h": height},
            "options": {} if kind == "timeseries" else {"reduceOptions": {"calcs": ["lastNotNull"]}},
            "fieldConfig": {"defaults": {
                "unit": unit,
                "min": 0 if title != "Up" else None,
                "mappings": [{"type": "special", "options": {"match": "nan", "result": {"text": "no traffic"}}}],
            }, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + at), "expr": chosen(query), "legendFormat": legend or "__auto"}
                for at, (query, legend) in enumerate(queries)
            ],
        })  # fmt: skip
        x += width
    return made


def main() -> None:
    for name, (title, panels) in DASHBOARDS.items():
        text = json.dumps(dashboard(name, title, panels), indent=2, ensure_ascii=False)
        Path(__file__).with_name(f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
