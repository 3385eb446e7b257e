"""Prometheus itself scrapes a gateway with real engines: every panel of every dashboard has something to show."""

import json
import math
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
import yaml

from backends.fingerprint import fingerprint
from classifier import Task
from classifier.calibration import Calibration, Calibrations, save
from classifier.confidence import FEATURES, Rule

pytestmark = [pytest.mark.slow, pytest.mark.models, pytest.mark.timeout(600)]

DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
# What Grafana would put in: the choice of everything, and a window of several scrapes.
CHOICES = {"$job": ".+", "$instance": ".+", "$__rate_interval": "1m", "$__range": "5m"}
SECONDS_OF_LOAD = 12
CONFIG = """
server: {{port: 0, drain_timeout: 5}}
state: {{folder: state}}
calibration: calibration.json
tiers:
  - name: 7b
    price: {{input: 0.1, cached: 0.01, output: 0.1}}
    engines: [{{model: {model}, dtype: float32, kv_tokens: 4096, speculation: {{method: ngram}}}}]
  - name: 70b
    price: {{input: 1.5, cached: 0.15, output: 1.5}}
    engines: [{{model: {model}, dtype: float32, kv_tokens: 4096, speculation: {{method: ngram}}}}]
anonymous: {{name: anonymous, policy: {{floor: 0.0}}, cascade: {{hold_tokens: 8}}}}
shadow_policies: {{strict: {{floor: 1.0}}}}
"""


@pytest.fixture(scope="module")
def serving(
    tmp_path_factory: pytest.TempPathFactory, smollm2_folder: Path, start_serving: Callable[..., Any]
) -> Iterator[Any]:
    """A gateway that does all that there are panels for: judges, escalates, drafts."""
    folder = tmp_path_factory.mktemp("watched")
    rules = tuple(doubting(task, after) for task in get_args(Task) for after in (8, None))
    calibration = Calibration(model=fingerprint(smollm2_folder), weights="float32", rules=rules)
    save(folder / "calibration.json", Calibrations(models=(calibration,)))
    (folder / "headrace.yaml").write_text(CONFIG.format(model=smollm2_folder))
    running = start_serving("--config", str(folder / "headrace.yaml"))
    yield running
    assert running.stop(within=60) == 0


def doubting(task: Task, after: int | None) -> Rule:
    """P(good) = 0.12 of whatever is said."""
    zeros, ones = (0.0,) * len(FEATURES), (1.0,) * len(FEATURES)
    return Rule(
        task=task, after=after, mean=zeros, scale=ones, weights=zeros, bias=-2.0, auc=0.8,
        calibration_error=0.0, answers=100, good=12,
    )  # fmt: skip


@pytest.fixture(scope="module")
def prometheus(serving: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that has scraped the gateway under load, with our rules."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed: make test-slow does that")
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{serving.port}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(DEPLOY / "prometheus" / "rules.yml", folder)
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{any_port.getsockname()[1]}"
    command = [
        program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}", "--log.level=error",
    ]  # fmt: skip
    with subprocess.Popen(command) as process:
        try:
            serving.eventually(lambda: answers(f"http://{address}/-/ready"))
            load(serving.url)
            time.sleep(2.5)  # two scrapes more
            yield f"http://{address}"
        finally:
            process.terminate()


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def load(url: str) -> None:
    """Some of everything, a refusal included, for long enough to be seen as a rate."""
    ends = time.monotonic() + SECONDS_OF_LOAD

    def client(number: int) -> None:
        turn = 0
        with httpx.Client(base_url=url, timeout=60) as client:
            while time.monotonic() < ends:
                turn += 1
                model = ("auto", "7b", "70b", "nobody")[(number + turn) % 4]
                quoted = "the mill turns the wheel, and the wheel turns the stone. " * (2 + turn % 5)
                said = [{"role": "user", "content": f"Repeat this to the end: {quoted}"}]
                body = {"model": model, "messages": said, "max_tokens": 24, "temperature": 0}
                client.post("/v1/chat/completions", json=body, headers={"x-session-id": "new"})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(client, range(4)))


def ask(prometheus: str, query: str) -> list[float]:
    """The values of an instant query."""
    answer = httpx.get(f"{prometheus}/api/v1/query", params={"query": query}).json()
    assert answer["status"] == "success", (query, answer)
    return [float(series["value"][1]) for series in answer["data"]["result"]]


def chosen(query: str) -> str:
    for name, value in CHOICES.items():
        query = query.replace(name, value)
    assert "$" not in query
    return query


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: str(file.stem))
def test_every_panel_s_queries_return_data(prometheus: str, file: Path) -> None:
    empty = []
    for panel in json.loads(file.read_text(encoding="utf-8"))["panels"]:
        for target in panel["targets"]:
            values = ask(prometheus, chosen(target["expr"]))
            if not any(math.isfinite(value) for value in values):
                empty.append((panel["title"], target["expr"], values))
    assert empty == []


def test_the_variables_have_something_to_choose_from(prometheus: str) -> None:
    found = httpx.get(f"{prometheus}/api/v1/series", params={"match[]": "headrace_draining"}).json()["data"]
    assert [(series["job"], series["instance"].partition(":")[0]) for series in found] == [
        ("headrace", "127.0.0.1")
    ]


def test_names_with_colons_arrive_as_they_are(prometheus: str) -> None:
    names = httpx.get(f"{prometheus}/api/v1/label/__name__/values").json()["data"]
    assert "vllm:generation_tokens_total" in names and "vllm:kv_cache_usage_perc" in names
    assert not [name for name in names if name.startswith("vllm_") or name.endswith("_created")]


def test_the_rules_are_evaluated_and_calm(prometheus: str) -> None:
    groups = httpx.get(f"{prometheus}/api/v1/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    written = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]
    assert len(rules) == sum(len(group["rules"]) for group in written)
    assert {rule["health"] for rule in rules} == {"ok"}
    assert ask(prometheus, "tier:headrace_time_to_first_token_seconds:p95_5m")
    firing = {rule["name"] for rule in rules if rule.get("state") == "firing"}
    assert firing == set()  # nothing lasts long enough here


def test_totals_are_what_the_gateway_says(prometheus: str, serving: Any) -> None:
    said = serving.metric("headrace_tokens_total", kind="completion")
    assert ask(prometheus, 'sum(headrace_tokens_total{kind="completion"})') == [said]
    state = httpx.get(f"{serving.url}/dashboard/state").json()
    assert sum(tier["completion_tokens"] for tier in state["tiers"]) == said
