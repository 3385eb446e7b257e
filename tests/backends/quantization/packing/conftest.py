"""Weights whose packed form by others' code is known."""

from collections.abc import Callable

import pytest
import torch

from backends.quantization.grouped import Grouped

ROWS, COLUMNS, GROUP = 32, 64, 32


@pytest.fixture(scope="session")
def known() -> Callable[..., Grouped]:
    """`known(bits)`: 32 x 64 weights by a formula, scales that are powers of two, no zero of 0."""

    def make(bits: int, column_groups: torch.Tensor | None = None) -> Grouped:
        row, column, group = (
            torch.arange(ROWS)[:, None],
            torch.arange(COLUMNS),
            torch.arange(COLUMNS // GROUP),
        )
        integers = (5 * row + 3 * column + row * column // 7) % (1 << bits)
        zeros = (3 * row + 5 * group) % ((1 << bits) - 1) + 1
        scales = 2.0 ** -((row + group) % 5 + 3)
        return Grouped(bits, integers.to(torch.uint8), scales, zeros.to(torch.uint8), column_groups)

    return make


@pytest.fixture(scope="session")
def drawn() -> Callable[..., Grouped]:
    """`drawn(bits, rows, columns, groups)`: random weights."""

    def make(
        bits: int, rows: int = 32, columns: int = 96, groups: int = 3, symmetric: bool = False
    ) -> Grouped:
        random = torch.Generator().manual_seed(3)
        integers = torch.randint(0, 1 << bits, (rows, columns), dtype=torch.uint8, generator=random)
        zeros = torch.randint(1, 1 << bits, (rows, groups), dtype=torch.uint8, generator=random)
        if symmetric:
            zeros.fill_(1 << (bits - 1))
        scales = torch.rand(rows, groups, generator=random).half() / 16
        return Grouped(bits, integers, scales, zeros)

    return make
