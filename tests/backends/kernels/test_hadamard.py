import numpy as np
import pytest
import torch

from backends.kernels.hadamard import mix


@pytest.mark.parametrize("columns", [1, 7, 24, 64, 80, 96, 130, 192, 576, 896, 1536])
def test_mixing_is_orthogonal_and_its_own_inverse(columns: int) -> None:
    matrix = np.eye(columns, dtype=np.float32)
    for row in matrix:
        mix(row)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(columns), atol=1e-6)
    np.testing.assert_allclose(matrix @ matrix, np.eye(columns), atol=1e-6)


@pytest.mark.parametrize(("columns", "most"), [(576, 64), (64, 64), (80, 16), (96, 32), (7, 1)])
def test_what_one_column_has_is_spread_evenly(columns: int, most: int) -> None:
    for place in (0, columns // 2, columns - 1):
        row = np.zeros(columns, np.float32)
        row[place] = 8
        mix(row)
        assert np.count_nonzero(row) == most
        np.testing.assert_allclose(abs(row[row != 0]), 8 / most**0.5, rtol=1e-6)


def test_long_rows_are_mixed_as_by_a_matrix() -> None:
    """By halves, as the transform is defined: the columns of an eighth, and eight neighbours."""
    sums = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    eight = torch.kron(torch.kron(sums, sums), sums) / 8**0.5
    row = np.random.default_rng(0).standard_normal(576).astype(np.float32)
    parts = torch.from_numpy(row).double().view(8, 9, 8)
    expected = torch.einsum("pa,arb,bq->prq", eight, parts, eight)
    mix(row)
    np.testing.assert_allclose(row, expected.reshape(-1).numpy(), atol=1e-6)
