"""`headrace train`, on a made-up corpus; and, slowly, that the shipped artefact can be made again."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from classifier import artefact, card, corpus, figures
from classifier.artefact import META, REFERENCE, WEIGHTS
from classifier.heads import fit_head
from classifier.model import Classifier
from classifier.train import main, train


def run(*words: object) -> str:
    """What the command prints."""
    with redirect_stdout(io.StringIO()) as out:
        assert main(list(map(str, words))) == 0
    return out.getvalue()


@pytest.fixture(scope="module")
def trained(corpus_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artefact")
    (folder / "printed").write_text(run("--data", corpus_folder, "--out", folder))
    return folder


@pytest.fixture(scope="module")
def printed(trained: Path) -> str:
    return (trained / "printed").read_text()


def test_training_writes_an_artefact_that_loads_and_has_learnt(trained: Path) -> None:
    assert {card.NAME, META, REFERENCE, WEIGHTS} <= {path.name for path in trained.iterdir()}
    classifier = Classifier.load(trained)
    easy = classifier.assess("Name the colour of apples, case 7.").good
    hard = classifier.assess("Prove a hard theorem about apples 7.").good
    assert easy["7b"] > 0.6 > 0.4 > hard["7b"]
    assert hard["70b"] - hard["7b"] > easy["70b"] - easy["7b"]
    assert classifier.assess("Translate to French: the tree.").task == "translation"


def test_figures_are_printed_and_stand_in_the_card(trained: Path, printed: str) -> None:
    text = (trained / card.NAME).read_text()
    _, meta = artefact.load(trained)
    assert figures.pages(meta.figures) in text and figures.pages(meta.figures) in printed
    for baseline in ("random", "length", "source", "oracle"):
        assert text.count(f"| {baseline} |") == text.count("| this router |") > 1


def test_the_same_data_give_the_same_bytes(trained: Path, corpus_folder: Path, tmp_path: Path) -> None:
    main(["--data", str(corpus_folder), "--out", str(tmp_path)])
    for name in (WEIGHTS, REFERENCE, META, card.NAME):
        assert (tmp_path / name).read_bytes() == (trained / name).read_bytes()


def test_estimates_are_calibrated_on_what_was_held_out(trained: Path) -> None:
    _, meta = artefact.load(trained)
    held_out = meta.figures.held_out
    assert held_out.rows > 10 and held_out.left_out > 100
    assert all(head.ece < 0.15 for head in held_out.tiers.values())
    assert held_out.apgr > 0.5


def own(path: Path, rows: int) -> Path:
    """Graded answers of two tiers of one's own: the large one helps with proofs."""
    with path.open("w") as file:
        for n in range(rows):
            proof = n % 2
            prompt = f"Prove lemma {n}" if proof else f"Name the colour of apple {n}"
            y = {"y_small": 0.1 if proof else 0.9, "y_large": 0.9 if proof else 0.95}
            file.write(json.dumps({"prompt": prompt, "source": "tickets"} | y) + "\n")
    return path


def test_own_answers_give_heads_for_own_tiers_beside_the_shipped_tasks(tmp_path: Path) -> None:
    data, out = own(tmp_path / "mine.jsonl", 300), tmp_path / "out"
    told = run("--data", data, "--tiers", "small,large", "--prices", "1,16", "--out", out)
    assert "y_small to y_large" in told
    mine, shipped = Classifier.load(out), Classifier.load()
    proof, apple = mine.assess("Prove lemma 999").good, mine.assess("Name the colour of apple 999").good
    assert list(proof) == ["small", "large"]
    assert proof["large"] - proof["small"] > 0.4 > 0.2 > apple["large"] - apple["small"]
    strange = mine.assess("Which volcano erupted beneath an Icelandic glacier?").good
    assert apple["small"] - 0.2 > strange["small"] > proof["small"] + 0.2
    for prompt in ("Translate to French: the tree.", "Write a poem about autumn", "What is 17 * 23?"):
        assert mine.assess(prompt).task == shipped.assess(prompt).task
    text = (out / card.NAME).read_text()
    assert "Graded answers of the tiers small, large" in text and "Llama" not in text
    assert mine.usual.keys() == {"small", "large"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tiers", "small,large"], "prices: 2 are needed, one for each of small, large"),
        (["--tiers", "small,large", "--prices", "0,0"], "prices: must rise from small to large, not 0, 0"),
        (["--tiers", "small,huge", "--prices", "1,2"], "mine.jsonl, line 1: y_huge is missing"),
        (
            ["--tiers", "small,large", "--prices", "1,2"],
            "graded answers to 40 different prompts are too few; 200 prompts suffice",
        ),
    ],
)
def test_what_own_answers_lack_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    data = own(tmp_path / "mine.jsonl", 40)
    assert main(["--data", str(data), "--out", str(tmp_path / "out"), *words]) == 2
    assert capsys.readouterr().err == f"headrace train: {told}\n"


def test_a_tier_that_never_fails_is_nearly_certain() -> None:
    inputs = np.repeat(np.eye(2), 4, axis=0)
    estimates = fit_head(inputs, np.ones(8), penalty=1.0).predict_proba(np.eye(2))[:, 1]
    assert (estimates > 0.99).all()


def test_a_missing_data_set_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    missing = tmp_path / "llama2_tiers.jsonl.gz"
    assert capsys.readouterr().err == f"headrace train: {missing}: No such file or directory\n"
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_there_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path / "mine.jsonl"), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"headrace train: {tmp_path}/mine.jsonl: No such file or directory\n"


def test_many_answers_to_few_prompts_are_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = own(tmp_path / "mine.jsonl", 40)
    data.write_text(data.read_text() * 20)
    words = ["--data", str(data), "--tiers", "small,large", "--prices", "1,2", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "graded answers to 40 different prompts are too few" in capsys.readouterr().err


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
    old, new = shipped.figures.held_out, again.figures.held_out
    assert new.apgr == pytest.approx(old.apgr, abs=0.01)
    assert new.ece == pytest.approx(old.ece, abs=0.01)
    assert again.figures.tasks.accuracy == pytest.approx(shipped.figures.tasks.accuracy, abs=0.01)
