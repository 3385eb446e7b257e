"""How engines share themselves out: `headrace_engine_*` series of queues, bands, targets and predictions.

The target of a band is met when 95 of 100 answers begin in time, that of a reader by 20 tokens a second: from the
counters here a query says how many do.
"""

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry

from backends.wire import Band, Load
from gateway.series import Counter, Gauge

LABELS = ("model_name", "engine")
STATES = ("running", "waiting")
TRAFFIC = ("interactive", "batch")


class ScheduleMetrics:
    """Series of all engines. `before` is an earlier Load of the same start of an engine, None where there is none."""

    def __init__(self, registry: CollectorRegistry, engines: Mapping[str, str]) -> None:
        """`engines`: by name the model."""
        self._models = dict(engines)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(
                f"headrace_engine_{name}",
                text,
                (*LABELS, *labels),
                registry=registry,
                multiprocess_mode="livemax",
            )

        self._queue = gauge(
            "queue", "Sequences by what they do and whether somebody waits.", "state", "traffic"
        )
        self._paused = gauge("paused", "Running batch sequences that stand back for interactive ones.")
        self._waiting_tokens = gauge("waiting_tokens", "Tokens of the sequences in the queue.")
        self._band = gauge("band", "Band in force, counted from 0.")
        self._rows = gauge("band_rows", "Sequences that may run at a time in a band.", "band")
        self._target = gauge("band_ttft_seconds", "Target of a band for 95 of 100 first tokens.", "band")
        self._error = gauge(
            "step_prediction_error", "By which share the predicted time of the last steps was wrong."
        )
        self._budget = gauge(
            "step_budget_seconds",
            "Predicted time that the last step was to take at most; 0 where none is known.",
        )
        self._first = Counter(
            "headrace_engine_first_tokens", "Interactive answers begun, by band and whether within its target.",
            (*LABELS, "band", "in_time"), registry=registry,
        )  # fmt: skip

    def describe(self, engine: str, bands: Sequence[Band]) -> None:
        """The table of an engine, whose series begin at 0."""
        labels = self._models[engine], engine
        for number, band in enumerate(bands):
            self._rows.labels(*labels, str(number)).set(band.rows)
            self._target.labels(*labels, str(number)).set(band.ttft_ms / 1000)
            for in_time in ("true", "false"):
                self._first.labels(*labels, str(number), in_time)
        self.idle(engine)
        self._band.labels(*labels).set(0)
        self._error.labels(*labels).set(0)
        self._budget.labels(*labels).set(0)

    def idle(self, engine: str) -> None:
        """Nothing runs in an engine that is not there."""
        labels = self._models[engine], engine
        for state in STATES:
            for traffic in TRAFFIC:
                self._queue.labels(*labels, state, traffic).set(0)
        self._paused.labels(*labels).set(0)
        self._waiting_tokens.labels(*labels).set(0)

    def load(self, load: Load, before: Load | None) -> None:
        labels = self._models[load.engine], load.engine
        batch = {"running": load.running_batch, "waiting": load.waiting_batch}
        for state, total in (("running", load.running), ("waiting", load.waiting)):
            self._queue.labels(*labels, state, "batch").set(batch[state])
            self._queue.labels(*labels, state, "interactive").set(total - batch[state])
        self._paused.labels(*labels).set(load.paused)
        self._waiting_tokens.labels(*labels).set(load.waiting_tokens)
        self._band.labels(*labels).set(load.band)
        self._error.labels(*labels).set(load.step_error)
        self._budget.labels(*labels).set(load.step_budget)
        self._count(labels, "true", load.first_in_time, before.first_in_time if before else ())
        self._count(labels, "false", load.first_late, before.first_late if before else ())

    def _count(
        self, labels: tuple[str, str], in_time: str, now: Sequence[int], before: Sequence[int]
    ) -> None:
        for number, count in enumerate(now):
            seen = before[number] if before else 0
            self._first.labels(*labels, str(number), in_time).inc(count - seen)
