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
from backends.models.stored import Kind, StoredTensor


@pytest.mark.parametrize(
    ("type", "kind"),
    [
        *((type, "four") for type in ("Q4_0", "Q4_1", "Q4_K")),
        *((type, "whole") for type in ("F32", "F16", "BF16")),
    ]
    + [(type, "small") for type in ("Q5_0", "Q5_1", "Q8_0", "Q5_K", "Q6_K", "I64")],
)
def test_types_are_of_three_kinds(type: str, kind: Kind) -> None:
    assert StoredTensor(type, (1, 256), lambda: torch.empty(0)).kind == kind


@pytest.mark.parametrize(
    ("kinds", "columns", "auto", "int4"),
    [
        ({"four"}, 64, "int4", "int4"),
        ({"small"}, 64, "int8", "int8"),
        ({"four", "small"}, 256, "int8", "int8"),
        ({"whole"}, 64, "none", "int4"),
        ({"whole"}, 48, "none", "int8"),
        ({"four", "whole"}, 64, "int8", "int8"),
    ],
)
def test_a_linear_is_kept_as_suits_the_file(
    kinds: set[Kind], columns: int, auto: Format, int4: Format
) -> None:
    assert suited("auto", kinds, columns) == auto
    assert suited("int4", kinds, columns) == int4
    assert suited("int8", kinds, columns) == "int8"
    assert suited("none", kinds, columns) == "none"


def test_auto_is_none_where_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "cpu_has_avx2", lambda: True)
    assert possible("auto", "cpu") == "auto"
    assert possible("auto", "cuda") == "auto"
    monkeypatch.setattr(formats, "cpu_has_avx2", lambda: False)
    assert possible("auto", "cpu") == "none"
    assert possible("int8", "cpu") == "int8"


def test_small_integers_on_a_gpu_are_had_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "cpu_has_avx2", lambda: False)
    assert possible("int8", "cuda") == "int8"
    assert possible("int4", "cuda") == "int4"


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
