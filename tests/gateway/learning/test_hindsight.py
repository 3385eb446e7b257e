"""Other thresholds on requests of the past: by hand, and told apart from what happened."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main
from gateway.config import Price
from gateway.dashboard import record
from gateway.learning.hindsight import Attempt, Past, RecordError, load, replay

PRICES = {"small": Price(input=1, cached=0.1, output=1), "large": Price(input=10, cached=1, output=10)}
NOW = 1_000_000_000.0


def attempt(
    tier: str, outcome: str, tokens: int, confidence: float | None = None, after: int = 0
) -> dict[str, Any]:
    return {
        "tier": tier, "replica": f"{tier}/0", "outcome": outcome, "prompt_tokens": 100, "cached_tokens": 0,
        "completion_tokens": tokens, "confidence": confidence, "judged_after": after or None,
    }  # fmt: skip


def request(*attempts: dict[str, Any], at: float = NOW, **fields: Any) -> dict[str, Any]:
    plain = {"v": 1, "at": at, "tier": attempts[-1]["tier"], "good": {"small": 0.5, "large": 0.9},
             "attempts": attempts, "order": ["small", "large"], "id": "x"}  # fmt: skip
    return {**plain, **fields}


KEPT = request(attempt("small", "answered", 40, 0.6, 32))
ESCALATED = request(attempt("small", "escalated", 34, 0.2, 32), attempt("large", "answered", 50))


def folder(tmp_path: Path, *requests: dict[str, Any]) -> Path:
    (tmp_path / "2001-09-09-1-0.jsonl").write_text("".join(json.dumps(each) + "\n" for each in requests))
    return tmp_path


@pytest.mark.parametrize(
    ("threshold", "kept", "cost", "good", "estimated"),
    [
        (0.5, 1, 140 + 132 + 1500, 0.6 + 0.9, 0),  # as it was
        (0.1, 2, 140 + 150, 0.6 + 0.2, 1),  # the second would have become as long as the large one's
        # The large one would have said as much as the small one.
        (0.7, 0, 132 + 1400 + 132 + 1500, 0.9 + 0.9, 1),
    ],
)
def test_by_hand(
    tmp_path: Path, threshold: float, kept: int, cost: float, good: float, estimated: int
) -> None:
    past = load(folder(tmp_path, KEPT, ESCALATED), days=7, now=NOW)
    found = replay(past, PRICES, ["small", "large"], threshold)
    assert (found.requests, found.kept, found.known, found.estimated) == (2, kept, 2, estimated)
    assert found.cost * 1e6 == pytest.approx(cost) and found.good == pytest.approx(good)


def test_whose_answers_were_never_judged_tells_nothing(tmp_path: Path) -> None:
    others = [
        request(attempt("large", "answered", 40)),
        request(attempt("small", "engine_died", 0, 0.3, 8)),
        request(attempt("small", "answered", 40, 0.6, 32), at=NOW - 8 * 86_400),
    ]
    assert load(folder(tmp_path, *others), days=7, now=NOW) == []


def test_a_failed_attempt_before_it_changes_nothing(tmp_path: Path) -> None:
    failed = request(attempt("small", "engine_died", 0), *KEPT["attempts"])
    past = load(folder(tmp_path, failed), days=7, now=NOW)
    assert replay(past, PRICES, ["small", "large"], 0.5).cost * 1e6 == pytest.approx(140)


def test_tiers_of_another_configuration_are_left_out(tmp_path: Path) -> None:
    past = load(folder(tmp_path, KEPT, ESCALATED), days=7, now=NOW)
    assert replay(past, {"small": PRICES["small"]}, ["small"], 0.5).requests == 1


@pytest.mark.parametrize(
    ("line", "fault"),
    [('{"v": 1}', "missing required field"), (json.dumps({**KEPT, "v": 2}), "v is 2, not 1")],
)
def test_faults_are_named(tmp_path: Path, line: str, fault: str) -> None:
    (folder(tmp_path) / "a.jsonl").write_text(f"{json.dumps(KEPT)}\n{line}\n")
    with pytest.raises(RecordError, match=r"a\.jsonl, line 2: ") as error:
        load(tmp_path, days=7, now=NOW)
    assert fault in str(error.value)


def test_a_line_that_is_being_written_is_passed_over(tmp_path: Path) -> None:
    with (folder(tmp_path, KEPT) / "b.jsonl").open("w") as file:
        file.write(json.dumps(KEPT) + '\n{"v": 1, "at"')
    assert len(load(tmp_path, days=7, now=NOW)) == 2


def test_it_reads_what_the_gateway_writes() -> None:
    assert set(Attempt.__struct_fields__) <= set(record.Attempt.__struct_fields__)
    of_the_writer = {"v", "order"}
    assert set(Past.__struct_fields__) - of_the_writer <= set(record.Record.__struct_fields__)


def run(tmp_path: Path, *words: str) -> int:
    config = tmp_path / "c.yaml"
    tier = "  - {{name: {}, price: {{input: {}, output: {}}}, remotes: [{{url: 'http://127.0.0.1:1/v1', model: m}}]}}\n"
    config.write_text("tiers:\n" + tier.format("small", 1, 1) + tier.format("large", 10, 10))
    return main(["replay", "--config", str(config), *words])


def test_at_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r").mkdir()
    records = folder(tmp_path / "r", KEPT, ESCALATED)
    assert run(tmp_path, "--records", str(records), "--days", "36500", "--json", "--threshold", "0.5") == 0
    assert json.loads(capsys.readouterr().out) == [
        {"threshold": 0.5, "requests": 2, "kept": 1, "cost": 0.001772, "good": 0.75, "estimated": 0}
    ]
    assert run(tmp_path, "--records", str(records), "--days", "36500") == 0
    assert "     0.50   50.0%       0.001772    0.750       0.0%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "--records: the configuration keeps none"),
        (("--records", "EMPTY"), "holds no records"),
        (("--records", "OLD"), "no answer to a request of the last 7 days was judged"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    for name in ("EMPTY", "OLD"):
        (tmp_path / name).mkdir()
    folder(tmp_path / "OLD", KEPT)
    assert run(tmp_path, *(str(tmp_path / word) if word.isupper() else word for word in words)) == 2
    assert told in capsys.readouterr().err


def test_thresholds_are_chances(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["replay", "--threshold", "1.5"])
    assert "--threshold: must be from 0 to 1" in capsys.readouterr().err
