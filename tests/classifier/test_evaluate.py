"""Figures: those of the shipped artefact can be found again, and they are told as they are."""

import json
from pathlib import Path

import pytest

from classifier import artefact, corpus
from classifier.artefact import SHIPPED
from classifier.evaluate import evaluate, latency, main
from classifier.figures import pages
from classifier.model import Classifier


def test_the_shipped_figures_are_found_again(real_corpus: Path) -> None:
    found = evaluate([real_corpus / corpus.TIER_OUTCOMES], SHIPPED, fit=False)
    _, meta = artefact.load(SHIPPED)
    known = meta.figures.held_out
    assert (found.rows, found.left_out, found.columns) == (known.rows, known.left_out, known.columns)
    assert found.apgr == pytest.approx(known.apgr, abs=1e-3)
    assert found.ece == pytest.approx(known.ece, abs=1e-3)
    assert found.per_source.keys() == known.per_source.keys()


def test_the_shipped_figures_beat_what_they_are_shown_beside() -> None:
    """A retrained artefact that fails here is worse than none."""
    _, meta = artefact.load(SHIPPED)
    held_out, again = meta.figures.held_out, meta.figures.refitted
    assert held_out.apgr > max(0.5, held_out.baselines["length"].apgr)
    assert again.cross_validated.router.apgr >= 0.58
    assert again.cross_validated.above_length[1] > 0
    assert all(head.log_loss < head.log_loss_of_mean for head in held_out.tiers.values())
    assert all(head.ece < 0.08 for head in held_out.tiers.values())
    assert meta.figures.tasks.accuracy > 0.95


def test_the_card_shows_these_figures() -> None:
    _, meta = artefact.load(SHIPPED)
    card = (SHIPPED / "MODEL_CARD.md").read_text()
    assert pages(meta.figures) in card
    assert all(f"{digest}  {name}" in card for name, digest in meta.data.items())


def test_an_interval_that_covers_chance_says_so() -> None:
    _, meta = artefact.load(SHIPPED)
    shown = pages(meta.figures)
    for compared in meta.figures.held_out.per_source.values():
        low, high = compared.router.intervals["apgr"]
        told = f"| {compared.router.apgr:.3f} ({low:.3f} to {high:.3f}"
        assert (f"{told}, chance included)" in shown) == (low <= 0.5 <= high)


def test_latency_takes_the_seconds_that_were_told() -> None:
    median, high = latency(Classifier.load().assess, ["a", "b"] * 20)
    assert 0 < median <= high


def graded(path: Path, *columns: str) -> Path:
    with path.open("w") as file:
        for n in range(60):
            hard = n % 2
            prompt = f"Prove theorem {n}." if hard else f"Hello {n}!"
            values = dict.fromkeys(columns, 0.9) | {columns[0]: 0.1 if hard else 0.9}
            file.write(json.dumps({"prompt": prompt, "source": "mine"} | values) + "\n")
    return path


def test_the_command_writes_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = graded(tmp_path / "mine.jsonl", "y_7b", "y_13b", "y_70b"), tmp_path / "out.json"
    assert main(["--data", str(data), "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert {"apgr", "cpt50", "cpt80", "auc", "ece", "per_source", "baselines", "quality_kept"} <= found.keys()
    assert found["rows"] == 60 and found["left_out"] == 0
    assert found["baselines"].keys() == found["per_source"]["mine"]["baselines"].keys()
    assert found["refitted"]["cross_validated"]["router"]["apgr"] > 0.7
    assert found["refitted"]["few_labels"] is None
    assert found["refitted"]["leave_one_source_out"] == {}
    printed = capsys.readouterr().out
    assert "60 rows that were not fitted on" in printed and "Milliseconds for 32,000 characters" in printed


def test_a_pair_is_scored_by_what_the_dearest_tier_gains_over_the_cheapest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = graded(tmp_path / "mine.jsonl", "weak", "strong"), tmp_path / "out.json"
    words = ["--data", str(data), "--json", str(out), "--no-fit", "--pair", "weak,strong", "--prices", "1,10"]
    assert main(words) == 0
    found = json.loads(out.read_text())
    assert (found["columns"], found["prices"], found["refitted"]) == (["weak", "strong"], [1, 10], None)
    assert list(found["tiers"]) == ["weak", "strong"]
    assert "Fitted" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--pair", "weak,huge"], "mine.jsonl, line 1: huge is missing"),
        (
            ["--pair", "weak,strong", "--prices", "1,2,3"],
            "prices: 2 are needed, one for each of weak, strong",
        ),
        (
            ["--pair", "weak,strong", "--source", "mine", "other"],
            "--source: there is no other; there are mine",
        ),
        (["--pair", "weak,strong", "--prices", "2,1"], "prices: must rise from weak to strong, not 2, 1"),
        (["--pair", "weak,strong", "--prices", "0,0"], "prices: must rise from weak to strong, not 0, 0"),
        (["--pair", "weak,strong", "--prices", "1,nan"], "prices: must rise from weak to strong, not 1, nan"),
        (["--json", "/nowhere/found.json"], "[Errno 2] No such file or directory: '/nowhere'"),
        (
            ["--pair", "weak,strong", "--artefact", "/nowhere"],
            "/nowhere/meta.json: No such file or directory",
        ),
    ],
)
def test_the_command_tells_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    data = graded(tmp_path / "mine.jsonl", "weak", "strong")
    assert main(["--data", str(data), *words]) == 2
    assert capsys.readouterr().err.startswith(f"headrace evaluate: {told}")


@pytest.mark.parametrize("words", [["--pair", "one"], ["--pair", "one,one"], ["--prices", "1,x"], []])
def test_words_that_mean_nothing_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main([*(["--data", "f"] if words else []), *words])
    assert refused.value.code == 2


@pytest.mark.parametrize(
    ("text", "told"), [("", "holds no graded answers"), ("\n \n", "holds no graded answers")]
)
def test_a_file_without_rows_is_told_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    full, empty = graded(tmp_path / "mine.jsonl", "weak", "strong"), tmp_path / "empty.jsonl"
    empty.write_text(text)
    assert main(["--data", str(full), str(empty), "--pair", "weak,strong"]) == 2
    assert capsys.readouterr().err == f"headrace evaluate: empty.jsonl: {told}\n"


def test_answers_to_one_prompt_are_measured_and_not_fitted_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "one.jsonl", tmp_path / "out.json"
    data.write_text('{"prompt": "Hello?", "source": null, "id": 7, "y_7b": 0, "y_13b": 1, "y_70b": 1}\n' * 5)
    assert main(["--data", str(data), "--json", str(out)]) == 0
    assert json.loads(out.read_text())["refitted"] is None
    assert "too few different prompts to see what own labels would be worth" in capsys.readouterr().out
