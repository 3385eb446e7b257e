"""Prometheus itself scrapes a gateway with real engines: every panel of every dashboard has something to show."""

import json
import math
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.models, pytest.mark.timeout(600)]

DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
# What Grafana would put in: the choice of everything, and a window of several scrapes.
CHOICES = {"$job": ".+", "$instance": ".+", "$__rate_interval": "1m", "$__range": "5m"}
SECONDS_OF_LOAD = 12


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
                said = [
                    {
                        "role": "user",
                        "content": f"Tell me of rivers and mills, {'again ' * (turn % 5)}please.",
                    }
                ]
                body = {"model": model, "messages": said, "max_tokens": 12}
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
