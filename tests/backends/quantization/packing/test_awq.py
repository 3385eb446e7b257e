"""The words that AutoAWQ 0.2.9 makes of known weights (`WQLinear_GEMM.from_linear`), and back."""

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from backends.quantization.grouped import Grouped
from backends.quantization.packing import awq

FIRST_WORDS = [972416160, -1317180376, 972416160, -1317180376]
FIRST_ZEROS = [1906593137, 441308954, -1529384540, 1299257933]
DIGESTS = {"qweight": "485590aaa8fd1af8", "qzeros": "6af5ff3d68e5ba9b", "scales": "33e8b1b343310780"}


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()[:16]


def test_known_weights_become_the_words_of_autoawq(known: Callable[..., Grouped]) -> None:
    packed = awq.pack(known(4))
    assert packed["qweight"][0].tolist() == FIRST_WORDS
    assert packed["qzeros"][0].tolist() == FIRST_ZEROS
    assert {name: digest(tensor) for name, tensor in packed.items()} == DIGESTS


def test_there_and_back(drawn: Callable[..., Grouped]) -> None:
    weight = drawn(4)
    packed = awq.pack(weight)
    assert {name: list(tensor.shape) for name, tensor in packed.items()} == {
        "qweight": [96, 4], "qzeros": [3, 4], "scales": [3, 32],
    }  # fmt: skip
    back = awq.unpack(packed)
    for name in ("integers", "scales", "zeros"):
        assert torch.equal(getattr(back, name), getattr(weight, name))


def test_what_the_layout_cannot_hold_is_refused(drawn: Callable[..., Grouped]) -> None:
    with pytest.raises(ValueError, match="holds 4 bits, not 8"):
        awq.pack(drawn(8))
    with pytest.raises(ValueError, match="multiples of 8 rows, not 30"):
        awq.pack(drawn(4, rows=30))
    mixed = replace(drawn(4), column_groups=torch.zeros(96).long())
    with pytest.raises(ValueError, match="no neighbours"):
        awq.pack(mixed)
