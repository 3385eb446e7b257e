"""`headrace calibrate` at the command line: what it refuses, and what it makes of answers that are recorded already."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.fingerprint import fingerprint
from classifier.calibration import load
from classifier.model import Classifier
from gateway.cli import main
from gateway.learning.checkers import Regex
from gateway.learning.recordings import Book
from gateway.learning.samples import Sample, save

CONFIG = """
tiers:
  - {name: small, price: {input: 1, output: 1}, engines: [{model: MODEL, dtype: float32}]}
  - {name: large, price: {input: 10, output: 10}, engines: [{model: MODEL, dtype: bfloat16}]}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (tmp_path / "c.yaml").write_text(CONFIG.replace("MODEL", str(model)))
    return tmp_path / "c.yaml"


@pytest.fixture
def recorded(config: Path, tmp_path: Path, two_tiers: list[Any]) -> Path:
    model = fingerprint(tmp_path / "model")
    weights = {"small": "float32", "large": "bfloat16"}
    with Book(tmp_path / "r.jsonl") as book:
        for each in two_tiers:
            book.add(msgspec.structs.replace(each, model=model, weights=weights[each.tier]))
    return tmp_path / "r.jsonl"


def run(config: Path, tmp_path: Path, *words: str) -> int:
    place = ["--recordings", str(tmp_path / "r.jsonl"), "--out", str(tmp_path / "out.json")]
    return main(["calibrate", "--config", str(config), *place, *words])


def test_what_is_recorded_is_fitted(
    config: Path, recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config, tmp_path) == 0
    out = capsys.readouterr().out
    assert (
        "made: 300 samples answered by small and large" in out
        and "always large                     100.0%" in out
    )
    assert f"calibration: {tmp_path / 'out.json'}" in out
    found = load(tmp_path / "out.json")
    assert {each.weights for each in found.models} == {"float32", "bfloat16"}
    assert any(rule.judges for each in found.models for rule in each.rules)


def test_too_few_answers_judge_nothing(
    config: Path, tmp_path: Path, made: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model = fingerprint(tmp_path / "model")
    with Book(tmp_path / "r.jsonl") as book:
        for each in made.tier("small", 20, 0.0, 3.0, model=model):
            book.add(each)
    assert run(config, tmp_path) == 0
    out = capsys.readouterr().out
    assert "small        no rule: too few good or bad answers of any task (20 answers)" in out
    assert "out.json is written; no rule of it judges yet." in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "r.jsonl: holds no answer of this configuration's models; name a --sample"),
        (("--sample", "SAMPLE", "--tier", "smal"), "--tier: there is no tier smal; did you mean small?"),
        (("--sample", "SAMPLE", "--judge", "x"), "--judge: there is no tier x"),
        (("--sample", "BAD"), "bad.jsonl, line 1: "),
        (("--sample", "none.jsonl"), "none.jsonl"),
        (("--outcomes", "o.jsonl"), "--outcomes: needs the --sample"),
        (("--router", "folder"), "--router: needs the --sample"),
    ],
)
def test_what_is_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    (tmp_path / "sample.jsonl").write_text('{"prompt": "p", "checker": {"kind": "regex", "pattern": "x"}}\n')
    (tmp_path / "bad.jsonl").write_text('{"prompt": 1}\n')
    files = {"SAMPLE": str(tmp_path / "sample.jsonl"), "BAD": str(tmp_path / "bad.jsonl")}
    assert run(config, tmp_path, *(files.get(word, word) for word in words)) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_a_router_of_ones_own(
    config: Path, tmp_path: Path, made: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trained on the sample; the calibration is of what it says of prompts that it has not seen."""
    model = fingerprint(tmp_path / "model")
    asked = [
        Sample(
            prompt=f"Name a river near {n}." if n % 2 else f"What is {n} + {n + 7}?",
            checker=Regex(pattern="x"),
        )
        for n in range(300)
    ]
    save(tmp_path / "sample.jsonl", asked)
    sure = {"small": lambda n: n % 2 == 1, "large": lambda n: n % 20 != 0}
    with Book(tmp_path / "r.jsonl") as book:
        for tier, weights in (("small", "float32"), ("large", "bfloat16")):
            for n, each in enumerate(asked):
                fields = {"sample": each.digest, "model": model, "weights": weights}
                book.add(made.recording(n, tier, sure[tier](n), [-0.5] * 9, **fields))
    folder = tmp_path / "router"
    assert run(config, tmp_path, "--sample", str(tmp_path / "sample.jsonl"), "--router", str(folder)) == 0
    assert f"`classifier: {folder}`" in capsys.readouterr().out
    router = Classifier.load(folder)
    river, total = router.assess("Name a river near 8.").good, router.assess("What is 8 + 15?").good
    assert river["small"] > 0.8 > 0.2 > total["small"] and total["large"] > 0.7
    assert "small, large" in (folder / "MODEL_CARD.md").read_text()
    judged = load(tmp_path / "out.json").models
    assert any(rule.auc > 0.9 for each in judged for rule in each.rules)  # prompts tell all, answers nothing
