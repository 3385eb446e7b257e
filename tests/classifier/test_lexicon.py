"""The table of words: what is near in meaning lies near, and a made-up one can be made and read again."""

from zlib import crc32

import numpy as np
import pytest

from classifier import lexicon
from classifier.features import extract
from classifier.lexicon import DIMENSIONS, Lexicon, distilled, pack


def near(one: str, other: str) -> float:
    """Cosine of the meanings of two texts."""
    a, b = extract(one).meaning, extract(other).meaning
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.mark.parametrize(
    ("text", "like", "unlike"),
    [
        ("doctor", "physician", "gearbox"),
        ("A judge sentenced the thief", "the court convicted a burglar", "an acid dissolves the metal"),
        ("a poem on love", "a song of romance", "compute the integral"),
    ],
)
def test_like_means_near(text: str, like: str, unlike: str) -> None:
    assert near(text, like) > near(text, unlike) + 0.1


def test_what_ships_is_sorted_and_small() -> None:
    table = lexicon.shipped()
    assert lexicon.SHIPPED.stat().st_size < 2_000_000
    assert table.vectors.shape == (len(table.hashes), DIMENSIONS) and len(table.hashes) > 20_000
    assert (table.hashes[1:] > table.hashes[:-1]).all()
    assert ((table.weights > 0) & (table.weights <= 1)).all()


def test_rare_words_weigh_more() -> None:
    table = lexicon.shipped()
    the, bridge = table.weights[table.find(np.array([crc32(b"the"), crc32(b"bridge")], np.uint32))]
    assert bridge > 2 * the


def test_words_are_found_in_their_order_and_others_are_not() -> None:
    table = lexicon.shipped()
    words = [crc32(word) for word in (b"red", b"qwxzjk", b"fox", b"red")]
    found = table.find(np.array(words, np.uint32))
    assert table.hashes[found].tolist() == [words[0], words[2], words[3]]
    assert len(table.find(np.array([2**32 - 1, 0], np.uint32))) <= 2
    assert not table.mean(found[:0]).any()


def made() -> Lexicon:
    random = np.random.default_rng(0)
    embeddings = (random.standard_normal((200, 80)) + 5).astype(np.float32)  # 5: what all words share
    return distilled(np.arange(200, dtype=np.uint32)[::-1] * 7, embeddings)


def test_a_table_is_made_without_what_all_words_share() -> None:
    table = made()
    assert (table.hashes[1:] > table.hashes[:-1]).all()
    assert abs(table.vectors.astype(float).mean()) < 2
    np.testing.assert_allclose(np.linalg.norm(table.vectors.astype(float), axis=1), 127, rtol=0.03)
    # The first, most frequent word had the largest hash.
    assert table.weights.argmin() == len(table.weights) - 1


def test_the_same_table_gives_the_same_bytes() -> None:
    assert pack(made()) == pack(made())
    assert pack(lexicon.shipped()) == lexicon.SHIPPED.read_bytes()
