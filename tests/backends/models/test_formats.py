"""Which format suits what lies in a file, on which device."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from backends.models import formats
from backends.models.checkpoint import open_checkpoint
from backends.models.formats import Format, Quantization, possible, suited
from backends.models.loader import load_decoder
from backends.models.registry import decoder_config


@pytest.mark.parametrize(
    ("types", "columns", "auto", "int4"),
    [
        ({"Q4_1"}, 64, "int4", "int4"),
        ({"Q4_K", "Q4_0"}, 256, "int4", "int4"),
        ({"Q5_0"}, 64, "int8", "int8"),
        ({"Q4_K", "Q6_K"}, 256, "int8", "int8"),
        ({"Q8_0"}, 64, "int8", "int8"),
        ({"BF16"}, 64, "none", "int4"),
        ({"F32"}, 48, "none", "int8"),
        ({"Q4_1", "F32"}, 64, "int8", "int8"),
    ],
)
def test_a_linear_is_kept_as_suits_the_file(
    types: set[str], columns: int, auto: Format, int4: Format
) -> None:
    assert suited("auto", types, columns) == auto
    assert suited("int4", types, columns) == int4
    assert suited("int8", types, columns) == "int8"
    assert suited("none", types, columns) == "none"


def test_auto_is_none_where_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "cpu_has_avx2", lambda: True)
    assert possible("auto", "cpu") == "auto"
    assert possible("auto", "cuda") == "none"
    monkeypatch.setattr(formats, "cpu_has_avx2", lambda: False)
    assert possible("auto", "cpu") == "none"
    assert possible("int8", "cpu") == "int8"


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_small_integers_on_a_gpu_are_refused(quantization: Quantization) -> None:
    with pytest.raises(ValueError, match=f"quantization: {quantization} is for CPUs, not for cuda"):
        possible(quantization, "cuda")


def test_int4_is_refused_without_its_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "cpu_has_avx2", lambda: False)
    with pytest.raises(ValueError, match="quantization: int4 needs a CPU with AVX2; int8 runs on any"):
        possible("int4", "cpu")


@pytest.mark.parametrize(
    ("file", "quantization", "told"),
    [
        ("Q4_1", "auto", "quantization auto: 9 linears in int4"),
        ("Q8_0", "int4", "quantization int4: 9 linears in int8"),
        ("F32", "auto", "quantization auto: 9 linears in float32"),
    ],
)
def test_the_choice_is_logged(
    file: str,
    quantization: Quantization,
    told: str,
    tmp_path: Path,
    write_gguf: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two layers of four linears, and the head."""
    caplog.set_level(logging.INFO, "backends.models.loader")
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", format=file))
    config = decoder_config(checkpoint.config)
    load_decoder(checkpoint, config, torch.float32, torch.device("cpu"), quantization=quantization)
    assert caplog.messages == [told]
