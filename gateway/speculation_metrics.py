"""Whether drafts pay: the acceptance by position under vLLM's name, and `headrace_speculation_*` by way and task."""

from collections.abc import Mapping
from itertools import product
from typing import get_args

from prometheus_client import CollectorRegistry

from backends.wire import DraftMethod, GateReason, GateState, Load, Speculation
from classifier import Task
from gateway.series import Counter, Gauge

LABELS = ("model_name", "engine")
UNKNOWN = "unknown"  # the task of requests that nobody has assessed
TASKS = (*get_args(Task), UNKNOWN)


class SpeculationMetrics:
    """Series of all engines. `before` is an earlier Load of the same start of an engine, None where there is none."""

    def __init__(self, registry: CollectorRegistry, engines: Mapping[str, str]) -> None:
        """`engines`: by name the model."""
        self._models = dict(engines)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(
                f"headrace_speculation_{name}",
                text,
                (*LABELS, "method", "task", *labels),
                registry=registry,
                multiprocess_mode="livemax",
            )

        self._tokens = gauge("draft_tokens", "Tokens drafted at a time; 0 where nothing is but to find out.")
        self._acceptance = gauge("acceptance", "Share of drafted tokens accepted, given those before them.")
        self._gain = gauge(
            "expected_gain", "Times as many tokens expected in the same time as without drafts."
        )
        self._state = gauge("gate", "1 for the reason why as many tokens are drafted as are.", "reason")
        self._accepted = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Tokens accepted, by their position in the draft.",
            (*LABELS, "position"), registry=registry,
        )  # fmt: skip

    def describe(self, engine: str, speculation: Speculation) -> None:
        """How an engine drafts: its series begin at 0. One that does not has none."""
        if speculation.method == "off":
            return
        methods: tuple[DraftMethod, ...] = (
            get_args(DraftMethod) if speculation.method == "both" else (speculation.method,)
        )
        labels = self._models[engine], engine
        for position in range(speculation.max_tokens):
            self._accepted.labels(*labels, str(position))
        for method, task in product(methods, TASKS):
            closed = GateState(method=method, task=task, tokens=0, acceptance=0.0, gain=1.0, reason="probing")
            self._show(labels, closed)

    def load(self, load: Load, before: Load | None) -> None:
        labels = self._models[load.engine], load.engine
        for position, count in enumerate(load.accepted_by_position):
            seen = before.accepted_by_position[position] if before else 0
            self._accepted.labels(*labels, str(position)).inc(count - seen)
        for gate in load.gates:
            self._show(labels, gate)

    def _show(self, labels: tuple[str, str], gate: GateState) -> None:
        where = (*labels, gate.method, gate.task if gate.task in TASKS else UNKNOWN)
        self._tokens.labels(*where).set(gate.tokens)
        self._acceptance.labels(*where).set(gate.acceptance)
        self._gain.labels(*where).set(gate.gain)
        for reason in get_args(GateReason):
            self._state.labels(*where, reason).set(reason == gate.reason)
