"""The dashboards as files: whole, as their source says, and asking only for series that the gateway has."""

import importlib.util
import json
import re
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from backends.wire import EngineConfig, Speculation
from gateway.metrics import Metrics

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
NAMES = ("overview", "cascade", "engines", "tenants")
SERIES = re.compile(r"\b(?:headrace|vllm)[_:][a-z_:]+")


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_dashboards", FOLDER / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=NAMES)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((FOLDER / f"{request.param}.json").read_text(encoding="utf-8"))
    return made


@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_what_their_source_makes(build: ModuleType, name: str) -> None:
    assert tuple(build.DASHBOARDS) == NAMES
    assert json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")) == build.dashboard(
        name, *build.DASHBOARDS[name]
    )


def test_panels_have_a_place_of_their_own(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert 0 <= place["x"] and place["x"] + place["w"] <= 24
        assert panel["title"] and panel["targets"]
        assert panel["datasource"]["uid"] == "${datasource}"  # whatever the Prometheus is called there
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_every_query_chooses_job_and_gateway_in_every_selector(dashboard: dict[str, Any]) -> None:
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            assert len(SERIES.findall(query)) == query.count('job=~"$job",instance=~"$instance"') > 0, query
            assert query.count("{") == query.count("}") and query.count("(") == query.count(")")


def test_every_query_asks_for_series_that_are_there_from_the_first_scrape(dashboard: dict[str, Any]) -> None:
    page = Metrics(["7b", "70b"], {"7b/0": "m"}, ["t"], shadows=["cheap"])
    drafting = Speculation(method="both", draft="")
    page.describe(EngineConfig(name="7b/0", model="", socket="", vocabulary="", speculation=drafting))
    told = {line.split("{")[0].split(" ")[0] for line in page.render().decode().splitlines()}
    # Of real backends.
    watched = {"headrace_backend_inflight", "headrace_backend_up", "headrace_breaker_open"}
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            assert set(SERIES.findall(target["expr"])) <= told | watched
