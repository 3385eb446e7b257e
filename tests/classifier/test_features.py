"""Features: any text, bounded work, and the hashing that an artefact depends on."""

import subprocess
import sys
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier import lexicon
from classifier.features import BUCKETS, STRUCTURE, VERSION, WINDOW, Features, extract

ANY_TEXT = st.text(st.characters(), max_size=300)  # lone surrogates and NULs among them


def named(features: Features) -> dict[str, float]:
    return dict(zip(STRUCTURE, features.structure.tolist(), strict=True))


def check(features: Features) -> None:
    assert features.structure.shape == (len(STRUCTURE),)
    assert np.isfinite(features.structure).all()
    assert len(features.buckets) == len(features.weights) == len(set(features.buckets.tolist()))
    assert ((features.buckets >= 0) & (features.buckets < BUCKETS)).all()
    if len(features.buckets):
        assert float((features.weights.astype(float) ** 2).sum()) == pytest.approx(1, abs=1e-5)


@given(ANY_TEXT)
def test_any_text_has_features(text: str) -> None:
    check(extract(text))


@pytest.mark.parametrize(
    "text", ["", "\0", "\ud800", " ", "\n" * 10, "?" * 5000, "语" * 5000, "a" * 1_000_000]
)
def test_odd_texts_have_features(text: str) -> None:
    check(extract(text))


def test_names_are_distinct() -> None:
    assert len(set(STRUCTURE)) == len(STRUCTURE)


def test_only_both_ends_of_a_long_text_count() -> None:
    head, tail = "start " * (WINDOW // 6 + 1), "finish " * (WINDOW // 7 + 1)
    one, other = (extract(head + middle * 5000 + tail) for middle in ("x", "?"))
    np.testing.assert_array_equal(one.structure, other.structure)
    np.testing.assert_array_equal(one.buckets, other.buckets)


def test_grams_are_words_and_pairs_of_words_with_their_order() -> None:
    assert len(extract("red fox").buckets) == 3
    there, back = (set(extract(text).buckets.tolist()) for text in ("red fox", "fox red"))
    assert len(there & back) == 2
    assert crc32(b"red") % BUCKETS in there
    np.testing.assert_array_equal(extract("Red FOX").buckets, extract("red fox").buckets)


def test_numbers_count_by_their_length_only() -> None:
    np.testing.assert_array_equal(extract("add 12 and 345").buckets, extract("add 98 and 761").buckets)


def test_structure_tells_what_it_says() -> None:
    found = named(extract("Why does my code fail?\n```\nx = foo();\n```"))
    assert found["asks what"] == 0 and found["asks how"] == 1
    assert found["has '```'"] == found["rule code"] == 1
    assert found["log questions"] == pytest.approx(np.log(2))
    assert named(extract("AB12"))["share of upper"] == named(extract("AB12"))["share of digit"] == 0.5
    assert named(extract("Ärger"))["share of other bytes"] == pytest.approx(2 / 6)
    assert named(extract("is it so? "))["ends with a question"] == 1


def test_features_are_those_of_this_version() -> None:
    """A change of features makes artefacts useless: raise VERSION, train again, and then this sum."""
    features = extract("Write a Python function that adds 12 and 30.\n\nWhy is the sky blue? übersetze")
    assert (VERSION, len(STRUCTURE), crc32(repr(features.buckets.tolist()).encode())) == (3, 57, 4096978361)
    assert crc32(lexicon.SHIPPED.read_bytes()) == 1352535056
    assert float(features.structure.sum()) == pytest.approx(17.8427, abs=1e-3)


def test_no_hash_differs_from_process_to_process() -> None:
    code = "from classifier.features import extract; print(extract('the same words').buckets.tolist())"
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert runs == {f"{extract('the same words').buckets.tolist()}\n"}
