"""Figures: those of the shipped artefact can be found again, and they are told as they are."""

from pathlib import Path

import pytest

from classifier import artefact
from classifier.evaluate import latency, main, measure
from classifier.figures import table
from classifier.model import Classifier


def test_the_shipped_figures_are_found_again(real_corpus: Path) -> None:
    weights, meta = artefact.load(artefact.SHIPPED)
    known = meta.figures
    assess = Classifier(weights, meta.tiers, meta.tasks).assess
    found = measure(assess, real_corpus, known.cross_validated, known.tasks.accuracy_on_unseen_sources)
    assert found.tiers.rows == known.tiers.rows and found.tasks.rows == known.tasks.rows
    assert found.tiers.apgr == pytest.approx(known.tiers.apgr, abs=1e-3)
    assert found.tiers.calibration == pytest.approx(known.tiers.calibration, abs=1e-3)
    assert found.tasks.recall == pytest.approx(known.tasks.recall, abs=1e-3)
    assert found.elsewhere.keys() == known.elsewhere.keys()


def test_the_shipped_figures_beat_what_they_are_shown_beside() -> None:
    """A retrained artefact that fails here is worse than none."""
    _, meta = artefact.load(artefact.SHIPPED)
    tiers = meta.figures.tiers
    assert tiers.apgr.value > max(0.5, tiers.apgr_longest_first, tiers.apgr_hardest_first)
    assert meta.figures.cross_validated.apgr.low > 0.5
    assert all(tiers.log_loss[tier] < tiers.log_loss_of_mean[tier] for tier in meta.tiers)
    assert all(error < 0.08 for error in tiers.calibration.values())
    assert meta.figures.tasks.accuracy > 0.95


def test_the_card_shows_these_figures() -> None:
    _, meta = artefact.load(artefact.SHIPPED)
    card = (artefact.SHIPPED / "MODEL_CARD.md").read_text()
    assert all(f"| {name} | {value} |" in card for name, value in table(meta.figures))
    assert all(f"{digest}  {name}" in card for name, digest in meta.data.items())


def test_an_interval_that_covers_chance_says_so() -> None:
    _, meta = artefact.load(artefact.SHIPPED)
    shown = dict(table(meta.figures))
    for source, interval in meta.figures.cross_validated.apgr_within.items():
        assert ("chance" in shown[f"- inside {source} alone"]) == (interval.low <= 0.5 <= interval.high)
    assert any("chance" in value for value in shown.values())


def test_latency_takes_the_seconds_that_were_told() -> None:
    median, high = latency(Classifier.load().assess, ["a", "b"] * 20)
    assert 0 < median <= high


def test_the_command_prints_figures_and_latency(
    corpus_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--data", str(corpus_folder)]) == 0
    printed = capsys.readouterr().out
    assert "APGR, 7b to 70b" in printed and "milliseconds for 32,000 characters" in printed


def test_the_command_tells_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path), "--artefact", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("headrace evaluate: ")
