"""The rules, by Prometheus' own tool: they are well formed, and each alert fires where it must."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed: make test-slow does that"
)


def promtool(*words: str) -> str:
    done = subprocess.run([str(PROMTOOL), *words], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_configuration_and_rules_are_well_formed() -> None:
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml")


@needs_promtool
def test_each_alert_fires_where_it_must_and_not_elsewhere() -> None:
    assert "SUCCESS" in promtool("test", "rules", "rules.test.yml")


def test_every_alert_is_tested_both_ways() -> None:
    groups = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    told: dict[bool, set[str]] = {True: set(), False: set()}
    for test in yaml.safe_load((FOLDER / "rules.test.yml").read_text())["tests"]:
        for case in test["alert_rule_test"]:
            told[bool(case["exp_alerts"])].add(case["alertname"])
    assert told[True] == told[False] == alerts
