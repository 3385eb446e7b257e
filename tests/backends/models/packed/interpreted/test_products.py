"""A model of each kind of file through each product with Triton's kernels gives what plain torch gives."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backends.kernels import triton_products, triton_rounding
from backends.kernels.layout import KVCache, Layout, Span
from backends.kernels.products import Products
from backends.kernels.reference import Kernels
from backends.kernels.select import Place
from backends.models.checkpoint import open_checkpoint
from backends.models.decoder import Decoder, kernels_of
from backends.models.loader import load_decoder
from backends.models.registry import decoder_config
from backends.wire import Quantization
from tests.backends.models.packed.cases import CASES
from tests.backends.models.packed.conftest import Round, Write

TRITON = Products(triton_products.weight_only, triton_products.scaled, triton_rounding.quantize_rows)
CPU, A100, H100 = torch.device("cpu"), (8, 0), (9, 0)
IDS = torch.tensor([5, 17, 198, 0, 3])


def logits(model: Decoder) -> torch.Tensor:
    """Of a prompt of all tokens but one, and a step with that one."""
    config = model.config
    cache = KVCache(config.layers, 1, 16, config.kv_heads, config.head_dim, dtype=torch.float32)
    kernels = kernels_of(config, cache, 16, Kernels)
    parts = ((IDS[:-1], Span(0, len(IDS) - 1, [0])), (IDS[-1:], Span(len(IDS) - 1, 1, [0])))
    with torch.inference_mode():
        steps = [
            model.forward(ids, Layout([span], cache), torch.arange(len(ids)), kernels) for ids, span in parts
        ]
    return torch.cat(steps)


def compare(folder: Path, capability: tuple[int, int], asked: Quantization, bound: float) -> None:
    """Where inputs are rounded, one that lies between two steps may go to the other."""
    checkpoint = open_checkpoint(folder)
    config = decoder_config(checkpoint.config)
    plain = Place(CPU, capability)
    expected, ours = (
        logits(load_decoder(checkpoint, config, torch.float32, CPU, quantization=asked, place=place))
        for place in (plain, replace(plain, products=TRITON))
    )
    assert (ours - expected).norm() / expected.norm() < bound


@pytest.mark.parametrize(
    ("case", "capability", "asked", "bound"),
    [
        ("gptq in order", A100, "none", 1e-5),
        ("int8 rows", A100, "w8a8", 1e-2),
        ("fp8 blocks", H100, "none", 1e-2),
        pytest.param("fp8 blocks", A100, "none", 1e-5, marks=pytest.mark.slow),
        pytest.param("packed int8", A100, "auto", 1e-5, marks=pytest.mark.slow),
        pytest.param("awq 32", A100, "none", 1e-5, marks=pytest.mark.slow),
        pytest.param("fp8 rows", H100, "fp8", 1e-2, marks=pytest.mark.slow),
        pytest.param("fp8", H100, "auto", 1e-2, marks=pytest.mark.slow),
    ],
)
def test_a_packed_model(
    case: str,
    capability: tuple[int, int],
    asked: Quantization,
    bound: float,
    write_packed: Write,
    to_grouped: Round,
) -> None:
    made = CASES[case]
    folder = write_packed(made.settings, lambda weight: made.pack(weight, to_grouped)).packed
    compare(folder, capability, asked, bound)


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "capability"), [("w8a8", A100), ("fp8", A100), ("fp8", H100)])
def test_a_whole_model_that_is_rounded_as_was_asked_for(
    asked: Quantization, capability: tuple[int, int], write_packed: Write, to_grouped: Round
) -> None:
    made = CASES["awq 32"]
    folder = write_packed(made.settings, lambda weight: made.pack(weight, to_grouped)).whole
    compare(folder, capability, asked, 1e-2)
