"""Numbers from a prompt's text: what it looks like (structure), which words it holds (hashed grams), what they mean.

Everything works on the bytes of at most 4,000 characters, the first and the last 2,000, so that a long prompt
costs no more than a short one. Changing anything here changes `VERSION`, which an artefact records.
"""

import re
from math import log1p
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from classifier import lexicon
from classifier.rules import RULES, Words

VERSION = 3
BUCKETS = 32768  # a power of two
WINDOW = 2000  # characters kept at either end

_TOKEN = re.compile(rb"[a-z0-9_\x80-\xff]+|[^\sa-z0-9_\x80-\xff]")
_DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
_GOLDEN = np.uint32(0x9E3779B1)  # 2^32 / golden ratio, Knuth's multiplicative hash

_CLASSES = {
    "upper": b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "digit": b"0123456789",
    "bracket": b"()[]{}<>",
    "operator": b"+-*/=^%|&~",
    "backslash": b"\\",
    "quote": b"\"'`",
    "pause": b",;:",
    "stop": b".!",
    "dollar": b"$",
    "other bytes": bytes(range(128, 256)),
}
_CLASS_OF = bytes(
    next((number for number, members in enumerate(_CLASSES.values(), start=1) if byte in members), 0)
    for byte in range(256)
)

_MARKS = (b"```", b"    ", b"def ", b"return", b"import ", b"();", b"\\frac", b"$", b"(a)", b"\n(b)", b"options:",
          b"statement", b">>>", b"\n- ", b"\n1.", b"http", b"example", b"step by step", b"article", b"the following",
          b"sentence", b"each", b"percent", b"true or false", b"explain", b"why")  # fmt: skip
_OPENERS = {
    "asks what": frozenset(b"what who whom whose when where which".split()),
    "asks how": frozenset(b"how why".split()),
    "asks whether": frozenset(b"is are was were do does did can could will would should has have".split()),
    "tells": frozenset(
        b"write give list explain describe find compute calculate evaluate simplify solve create make generate"
        b" complete implement compose draft suggest identify determine name provide show tell".split()
    ),
    "supposes": frozenset(b"if let suppose consider assume given imagine".split()),
}

STRUCTURE: tuple[str, ...] = (
    "log characters",
    "log tokens",
    "log lines",
    "log questions",
    "log numbers",
    "mean token length",
    "unique tokens",
    "ends with a question",
    "speaks of me",
    "speaks to you",
    *(f"share of {name}" for name in _CLASSES),
    *(f"has {mark.decode()!r}" for mark in _MARKS),
    *_OPENERS,
    *(f"rule {task}" for task in RULES),
)


LOOK = len(STRUCTURE) + lexicon.DIMENSIONS


class Features(NamedTuple):
    """`structure` has the shape (len(STRUCTURE),). The grams are distinct `buckets` of hashed word 1- and 2-grams and
    their `weights`: square roots of counts, at Euclidean length 1. `words` are the rows of the lexicon of the words
    that it knows, as often as they occur; `meaning` is their mean, (lexicon.DIMENSIONS,)."""

    structure: NDArray[np.float32]
    buckets: NDArray[np.intp]
    weights: NDArray[np.float32]
    words: NDArray[np.intp]
    meaning: NDArray[np.float32]


def extract(text: str) -> Features:
    """Takes any text: empty, with NULs or lone surrogates, of any length."""
    window = text if len(text) <= 2 * WINDOW else f"{text[:WINDOW]}\n{text[-WINDOW:]}"
    lower = window.lower().encode("utf-8", "surrogatepass")
    tokens = _TOKEN.findall(lower.translate(_DIGITS_AS_ZERO))
    words = Words(lower, tokens)
    structure = [
        *_sizes(len(text), words),
        *_shares(window.encode("utf-8", "surrogatepass")),
        *[mark in lower for mark in _MARKS],
        *[words.first in openers for openers in _OPENERS.values()],
        *[rule(words) for rule in RULES.values()],
    ]
    hashes = np.array([crc32(token) for token in tokens], np.uint32)
    known = lexicon.shipped()
    found = known.find(hashes)
    return Features(np.array(structure, np.float32), *_grams(hashes), found, known.mean(found))


def _sizes(characters: int, words: Words) -> tuple[float, ...]:
    lower, tokens = words.text, words.tokens
    count = max(len(tokens), 1)
    return (
        log1p(characters),
        log1p(len(tokens)),
        log1p(lower.count(b"\n")),
        log1p(lower.count(b"?")),
        log1p(words.numbers),
        sum(map(len, tokens)) / count,
        len(words.bag) / count,
        float(lower.rstrip().endswith(b"?")),
        (tokens.count(b"i") + tokens.count(b"my")) / count,
        (tokens.count(b"you") + tokens.count(b"your")) / count,
    )


def _shares(raw: bytes) -> list[float]:
    classes, size = raw.translate(_CLASS_OF), max(len(raw), 1)
    return [classes.count(number) / size for number in range(1, len(_CLASSES) + 1)]


def _grams(singles: NDArray[np.uint32]) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    pairs = singles[:-1] * _GOLDEN + singles[1:]  # wraps around at 2^32
    hashes = np.concatenate([singles, pairs ^ (pairs >> np.uint32(15))])
    buckets, counts = _counted((hashes % BUCKETS).astype(np.intp))
    return buckets, np.sqrt(counts / max(len(hashes), 1)).astype(np.float32)


def _counted(numbers: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The distinct ones, rising, and how often each is there: `numpy.unique`, whose generality takes longer."""
    numbers.sort()
    new = np.ones(len(numbers) + 1, bool)  # the last one for the end
    np.not_equal(numbers[1:], numbers[:-1], out=new[1:-1])
    at = new.nonzero()[0]
    return numbers[at[:-1]], at[1:] - at[:-1]
