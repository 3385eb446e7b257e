"""Makes the table of words that the classifier reads prompts with: `python -m benchmarks.lexicon MODEL [FILE]`.

MODEL: the folder of a model that `headrace models pull` has converted. The file that ships is made from
Qwen2.5-Coder-1.5B-Instruct (Apache-2.0), whose words are those that its tokenizer has a token for, the most frequent
first; a word is the mean of the ways in which it is written: with a space before it or none, with a capital or none.
"""

import re
import sys
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from backends.models.checkpoint import open_checkpoint
from classifier.lexicon import SHIPPED, distilled, pack

_WORD = re.compile("Ġ([A-Z]?[a-z]+)")  # Ġ: how tokenizers of bytes write a space
# One matrix where they are tied; the first is stored finer.
_HEADS = ("lm_head.weight", "model.embed_tokens.weight")


def main(model: Path, file: Path = SHIPPED) -> None:
    words = _words(Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab())
    hashes = np.array([crc32(word.encode()) for word in words], np.uint32)
    _, first = np.unique(hashes, return_index=True)
    kept = np.sort(first)
    embeddings = _embeddings(model)
    vectors = np.array([embeddings[words_tokens].mean(axis=0) for words_tokens in words.values()])
    file.write_bytes(pack(distilled(hashes[kept], vectors[kept])))
    print(f"{file}: {len(kept):,} words, {file.stat().st_size:,} bytes")


def _words(vocabulary: dict[str, int]) -> dict[str, list[int]]:
    """Each word with its tokens. A tokenizer numbers its tokens by how often it met them."""
    found = (_WORD.fullmatch(token) for token, _ in sorted(vocabulary.items(), key=lambda each: each[1]))
    words = dict.fromkeys(match[1].lower() for match in found if match)
    return {word: [vocabulary[form] for form in _forms(word) if form in vocabulary] for word in words}


def _forms(word: str) -> tuple[str, ...]:
    return f"Ġ{word}", word, f"Ġ{word.capitalize()}", word.capitalize()


def _embeddings(model: Path) -> NDArray[np.float32]:
    checkpoint = open_checkpoint(model)
    name = next(name for name in _HEADS if name in checkpoint.names())
    found: NDArray[np.float32] = checkpoint.load(name, torch.float32).numpy()
    return found


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
