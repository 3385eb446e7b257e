"""`headrace train`, on a made-up corpus; and, slowly, that the shipped artefact can be made again."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from classifier import artefact, card, corpus
from classifier.artefact import META, REFERENCE, WEIGHTS
from classifier.fit import fit_head
from classifier.model import Classifier
from classifier.train import main, train


@pytest.fixture(scope="module")
def trained(corpus_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artefact")
    assert main(["--data", str(corpus_folder), "--out", str(folder)]) == 0
    return folder


def test_training_writes_an_artefact_that_loads_and_has_learnt(trained: Path) -> None:
    assert sorted(path.name for path in trained.iterdir()) == [card.NAME, META, REFERENCE, WEIGHTS]
    classifier = Classifier.load(trained)
    easy = classifier.assess("Name the colour of apples, case 7.").good
    hard = classifier.assess("Prove a hard theorem about apples 7.").good
    assert easy["7b"] > 0.6 > 0.4 > hard["7b"]
    assert hard["70b"] - hard["7b"] > easy["70b"] - easy["7b"]
    assert classifier.assess("Translate to French: the tree.").task == "translation"


def test_figures_are_printed_and_stand_in_the_card(
    trained: Path, corpus_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--data", str(corpus_folder), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    text = (trained / card.NAME).read_text()
    for said in (
        "APGR, 7b to 70b",
        "- random",
        "- longest prompt first",
        "calibration error, 70b",
        "task accuracy",
    ):
        assert said in printed and said in text


def test_the_same_data_give_the_same_bytes(trained: Path, corpus_folder: Path, tmp_path: Path) -> None:
    main(["--data", str(corpus_folder), "--out", str(tmp_path)])
    for name in (WEIGHTS, REFERENCE, META, card.NAME):
        assert (tmp_path / name).read_bytes() == (trained / name).read_bytes()


def test_estimates_are_calibrated_on_what_was_held_out(trained: Path) -> None:
    _, meta = artefact.load(trained)
    assert meta.figures.tiers.rows > 10
    assert all(error < 0.15 for error in meta.figures.tiers.calibration.values())
    assert meta.figures.tiers.apgr.value > 0.5


def test_a_missing_data_set_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert (
        capsys.readouterr().err
        == "headrace train: llama2_tiers.jsonl.gz, line 1: No such file or directory\n"
    )
    assert not (tmp_path / "out").exists()


def test_fractional_labels_are_met_by_their_mean() -> None:
    inputs = np.repeat(np.eye(2), 4, axis=0)
    quality = np.array([0.25, 0.5, 0.0, 0.25, 1.0, 0.5, 0.75, 0.75])
    estimates = fit_head(inputs, quality, penalty=1e6).predict_proba(np.eye(2))[:, 1]
    np.testing.assert_allclose(estimates, [0.25, 0.75], atol=1e-3)


@pytest.mark.slow
def test_the_shipped_artefact_can_be_made_again(real_corpus: Path) -> None:
    """To the bit on the machine that made it; elsewhere the last bits of sums may differ."""
    _, shipped = artefact.load(artefact.SHIPPED)
    again = train(real_corpus).meta
    assert again.data == shipped.data == corpus.digests(real_corpus)
    old, new = (msgspec.structs.asdict(meta.figures.tiers) for meta in (shipped, again))
    assert new["apgr"] == pytest.approx(old["apgr"], abs=0.01)
    assert new["calibration"] == pytest.approx(old["calibration"], abs=0.01)
    assert again.figures.tasks.accuracy == pytest.approx(shipped.figures.tasks.accuracy, abs=0.01)
