"""What is written as compressed-tensors, in the hands of transformers and the code of that format."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

from backends.quantize.job import Order, quantize
from backends.quantize.settings import settings

Logits = Callable[[Path, Sequence[int]], torch.Tensor]
Quantized = Callable[[Mapping[str, Mapping[str, Any]]], dict[str, Path]]

METHODS: dict[str, dict[str, Any]] = {
    "rtn 4": {"method": "rtn", "group": 64},
    "rtn 4 with zeros": {"method": "rtn", "group": 32, "asymmetric": True},
    "rtn 8 rows": {"method": "rtn", "bits": 8, "group": 0},
    "awq 8": {"method": "awq", "bits": 8, "group": 64},
    "gptq 4 with zeros": {"method": "gptq", "group": 64, "asymmetric": True},
    "fp8": {"method": "fp8"},
}
WITHOUT_ZEROS = ("rtn 4", "rtn 8 rows")
PROMPTS = (
    "The capital of France is",
    "def add(a, b):\n",
    "Once upon a time",
    "Water boils at",
    "1, 2, 3, 4,",
)
NEAR_TIE = 0.02  # of log-probabilities
IN_SIXTEEN_BITS = 5e-3  # of log-probabilities: it rounds the weights that it makes of small integers


@pytest.fixture(scope="module")
def made(quantized: Quantized) -> dict[str, Path]:
    return quantized(METHODS)


def assert_the_same(folder: Path, logits: Logits, near: float, **options: Any) -> None:
    from transformers import AutoModelForCausalLM

    ids = torch.randint(0, 199, (40,), generator=torch.Generator().manual_seed(2))
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    with torch.inference_mode():
        expected = theirs(ids[None]).logits[0].log_softmax(-1)
    torch.testing.assert_close(logits(folder, ids.tolist()), expected, atol=near, rtol=0)


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
@pytest.mark.parametrize("name", METHODS)
def test_it_is_read_as_it_is_meant(name: str, made: dict[str, Path], logits: Logits) -> None:
    from transformers.utils.quantization_config import CompressedTensorsConfig

    config = CompressedTensorsConfig(dequantize=True)
    assert_the_same(made[name], logits, IN_SIXTEEN_BITS, quantization_config=config)


@pytest.mark.parametrize("name", WITHOUT_ZEROS)
def test_it_is_read_without_a_word(name: str, made: dict[str, Path], logits: Logits) -> None:
    """Version 0.20.1 of the format's code has no room for packed zeros where it keeps weights packed; and with fp8 it
    rounds activations, too."""
    assert_the_same(made[name], logits, 1e-4)


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.timeout(900)
def test_a_real_model_says_the_same(smollm2_folder: Path, logits: Logits, tmp_path: Path) -> None:
    """What transformers says, token by token, is the likeliest here too, but for near ties."""
    from transformers import AutoModelForCausalLM

    order = Order(
        source=smollm2_folder, out=tmp_path / "made", settings=settings("rtn", group=64),
        calibrate=lambda: pytest.fail("rounding watches no model"), calibration="", device=torch.device("cpu"),
    )  # fmt: skip
    quantize(order, lambda total, done: None, lambda: None)
    tokenizer = tokenizers.Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))
    theirs = AutoModelForCausalLM.from_pretrained(order.out, dtype=torch.float32)
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt).ids
        said = theirs.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=20)[0].tolist()
        assert len(said) > len(ids)
        scores = logits(order.out, said)[len(ids) - 1 : -1]
        chosen = scores.gather(1, torch.tensor(said[len(ids) :])[:, None])[:, 0]
        assert (scores.amax(-1) - chosen).max() < NEAR_TIE
