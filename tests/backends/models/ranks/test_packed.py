"""Packed weights cut between two ranks: the logits are those of one."""

import pytest
import torch

from backends.engine.parallel.leader import Workers
from tests.backends.models.packed.cases import CASES
from tests.backends.models.packed.conftest import Round, Write
from tests.backends.models.ranks.test_logits import both, config_of

EVERYDAY = (
    "awq 32",
    "gptq in order",
    "packed int4 with zeros",
    "fp8 blocks",
    "nf4 nested",
    "bitsandbytes int8",
)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in EVERYDAY else [pytest.mark.slow]) for case in CASES]
)
@pytest.mark.parametrize("workers", [2], indirect=True, ids=["two ranks"])
def test_formats(case: str, workers: Workers, write_packed: Write, to_grouped: Round) -> None:
    """Expanded they are cut along inputs and outputs; in integers along outputs, so that nothing is rounded anew. The
    head is whole."""
    made = CASES[case]
    folder = write_packed(made.settings, lambda weight: made.pack(weight, to_grouped)).packed
    for quantization in ("none", "auto"):
        ours, wanted = both(workers, config_of(folder, quantization=quantization))
        torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)
