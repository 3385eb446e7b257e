"""On a real model, AWQ and GPTQ lose clearly less than rounding, on a text that they have not been told of."""

from pathlib import Path

import pytest

from benchmarks.quantize import MODELS, PEERS, rows_of

MODEL = "smollm2-135m-instruct"


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("smollm2_folder")
def test_four_bits_lose_less_where_the_model_is_watched(tmp_path: Path) -> None:
    found = rows_of(MODEL, MODELS[MODEL], 2, 16, tmp_path)
    rows = {row.case.removeprefix(f"{MODEL} "): row for row in found}
    whole = rows["rtn"].peer
    for method, rounded in PEERS.items():
        assert rows[method].peer == rows[rounded].ours
        assert whole < rows[method].ours < whole + 0.8 * (rows[rounded].ours - whole)
        assert 0 < rows[method].details["divergence"] < 0.8 * rows[rounded].details["divergence"]
    assert abs(rows["as it was"].details["divergence"]) < 1e-3
    assert rows["rtn of 8 bits"].ours < 1.01 * whole
