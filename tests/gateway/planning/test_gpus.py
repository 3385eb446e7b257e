"""Which GPUs are compared, and whose prices count."""

import pytest

from gateway.planning.gpus import COMPARED, GPUS, chosen


def test_prices_are_for_one_gpu_or_for_all() -> None:
    assert [gpu.price for gpu in chosen(["h100", "l4"], ["h100=9.5"])] == [9.5, GPUS["l4"].price]
    assert [gpu.price for gpu in chosen(["h100", "mi300x"], ["2"])] == [2, 2]
    assert [gpu.name for gpu in chosen([], [])] == list(COMPARED)
    assert [gpu.name for gpu in chosen(["l4", "h100", "l4"], [])] == ["l4", "h100"]


@pytest.mark.parametrize(
    ("names", "prices", "told"),
    [
        (["h10"], [], "--gpu: there is no GPU h10; did you mean h100"),
        (["l4"], ["h10=1"], "--price: there is no GPU h10; did you mean h100"),
        (["l4"], ["h100=1"], "--price: h100 is not among the GPUs of this plan, l4"),
        (["l4"], ["l4=cheap"], "--price: 'cheap' is not a price"),
        (["l4"], ["0"], "--price: '0' is not a price"),
        (["l4"], ["nan"], "--price: 'nan' is not a price"),
    ],
)
def test_bad_names_and_prices(names: list[str], prices: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        chosen(names, prices)


def test_rates_are_dense() -> None:
    """Eight bits have about twice the rate of sixteen; with sparsity it would be four times."""
    for gpu in GPUS.values():
        for kind in gpu.rates.keys() - {"fp16"}:
            assert gpu.rate(kind) / gpu.rate("fp16") == pytest.approx(2, rel=0.02)
