"""What several processes have counted, some of which are gone: real processes, real files."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics_shared import SharedMetrics
from gateway.otlp_metrics import as_otlp
from gateway.totals import Totals

PROGRAM = """
import json, os, signal, sys
from operator import attrgetter
from pathlib import Path
from gateway.metrics_shared import bury, count_in
folder, name, deeds = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
count_in(folder, name)
from gateway.metrics import Metrics
metrics = Metrics(["7b"], {"7b/0": "small"}, ["acme"], old_names=True, shared=folder)
for method, arguments in deeds:
    attrgetter(method)(metrics)(*arguments[0], **arguments[1])
if name == "teller":
    bury(folder, "two")
    sys.stdout.buffer.write(metrics.render())
    sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def process(folder: Path, name: str, *deeds: Any) -> str:
    """One that counts, and is killed."""
    words = [sys.executable, "-c", PROGRAM, str(folder), name, json.dumps(deeds)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    return done.stdout


def deed(method: str, *values: Any, **named: Any) -> Any:
    return method, (values, named)


def test_counts_of_all_lives_add_up_and_measures_die_with_their_process(tmp_path: Path) -> None:
    request = deed("request", "chat", "7b", 200, None, 0.4)
    process(tmp_path, "one", request, deed("draining", True), deed("state_backend", "limits", up=False))
    process(tmp_path, "two", request, request, deed("state_backend", "sessions", up=False))
    process(tmp_path, "two", request)  # its second life goes on from where the first was cut off
    page = process(tmp_path, "teller", deed("reloaded", 3, success=True))
    totals = Totals(text_string_to_metric_families(page))
    assert totals.of("headrace_requests_total", endpoint="chat", tier="7b") == 4
    assert totals.of("headrace_request_seconds_count", tier="7b") == 4
    assert totals.of("headrace_request_seconds_bucket", tier="7b", le="0.3") == 0
    assert totals.of("headrace_request_seconds_bucket", tier="7b", le="0.5") == 4
    assert totals.of("headrace_request_seconds_sum", tier="7b") == 1.6
    assert totals.of("headrace_draining") == 1  # one of them does
    assert totals.of("headrace_state_backend_up", kind="limits") == 0  # one of them cannot reach it
    assert totals.of("headrace_state_backend_up", kind="sessions") == 1  # who said otherwise is gone
    assert totals.of("headrace_config_version") == 3
    assert totals.of("vllm:num_running_seqs") == 0 and "vllm:num_running_seqs{" in page
    assert "# HELP headrace_draining 1 while the gateway takes no new requests." in page
    assert "pid=" not in page and "_created" not in page


def test_what_is_sent_to_a_collector_are_the_sums(tmp_path: Path) -> None:
    answered = deed("gen_ai.answered", "chat", "auto", "7b", (0.5, 1.5), 11)
    process(tmp_path, "one", answered)
    process(tmp_path, "two", answered, deed("gen_ai.answered", "chat", "auto", "7b", (0.002, 1.5), 11))
    sent = {metric.name: metric.data for metric in as_otlp(SharedMetrics(tmp_path).collect(), 1, 2)}
    assert set(sent) == {"gen_ai.server.time_to_first_token", "gen_ai.server.time_per_output_token"}
    (point,) = sent["gen_ai.server.time_to_first_token"].data_points
    assert (point.count, point.sum, sum(point.bucket_counts)) == (3, 1.002, 3)  # type: ignore[union-attr]
    at = {end: count for end, count in zip(point.explicit_bounds, point.bucket_counts, strict=False) if count}  # type: ignore[union-attr]
    assert at == {0.005: 1, 0.5: 2}


def test_a_file_that_is_just_being_made_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "counter_one.db").touch()
    assert list(SharedMetrics(tmp_path).collect()) == []
