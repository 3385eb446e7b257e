"""Which format suits what lies in a file, on which device."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from backends.layers.linear import Format
from backends.models import formats
from backends.models.checkpoint import open_checkpoint
from backends.models.formats import Capability, possible, suited
from backends.models.loader import load_decoder
from backends.models.registry import decoder_config
from backends.models.stored import Kind, StoredTensor
from backends.wire import Quantization

A100, H100 = (8, 0), (9, 0)


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
        ({"eight"}, 64, "int8", "int8"),
        ({"float8"}, 64, "int8", "int8"),
        ({"four", "small"}, 256, "int8", "int8"),
        ({"whole"}, 64, "none", "int4"),
        ({"whole"}, 48, "none", "int8"),
        ({"four", "whole"}, 64, "int8", "int8"),
    ],
)
def test_a_linear_on_a_cpu_is_kept_as_suits_the_file(
    kinds: set[Kind], columns: int, auto: Format, int4: Format
) -> None:
    assert suited("auto", kinds, columns) == auto
    assert suited("int4", kinds, columns) == int4
    assert suited("int8", kinds, columns) == "int8"
    assert suited("none", kinds, columns) == "none"


# By what is asked for, in this order; None: refused.
ASKED: tuple[Quantization, ...] = ("none", "auto", "int8", "int4", "w8a8", "fp8")
ON_GPUS: list[tuple[set[Kind], Capability, tuple[Format | None, ...]]] = [
    ({"whole"}, A100, ("none", "none", "int8", "int4", "w8a8", "fp8a16")),
    ({"whole"}, H100, ("none", "none", "int8", "int4", "w8a8", "fp8")),
    ({"small"}, A100, ("none", "int8", "int8", "int8", "w8a8", "fp8a16")),
    ({"small"}, H100, ("none", "int8", "int8", "int8", "w8a8", "fp8")),
    ({"four", "small"}, H100, ("none", "int8", "int8", "int8", "w8a8", "fp8")),
    ({"float8", "whole"}, H100, ("none", "int8", "int8", "int8", "w8a8", "fp8")),
    ({"four"}, A100, ("int4", "int4", None, "int4", None, None)),
    ({"eight"}, A100, ("int8", "int8", "int8", None, "w8a8", None)),
    ({"eight"}, H100, ("int8", "int8", "int8", None, "w8a8", None)),
    ({"float8"}, A100, ("fp8a16", "fp8a16", None, None, None, "fp8a16")),
    ({"float8"}, (8, 9), ("fp8", "fp8", None, None, None, "fp8")),
    ({"float8"}, (10, 0), ("fp8", "fp8", None, None, None, "fp8")),
]


@pytest.mark.parametrize(("kinds", "capability", "formats"), ON_GPUS)
def test_a_linear_on_a_gpu_stays_as_it_is_in_the_file(
    kinds: set[Kind], capability: Capability, formats: tuple[Format | None, ...]
) -> None:
    for asked, format in zip(ASKED, formats, strict=True):
        if format is None:
            with pytest.raises(ValueError, match=f"quantization: {asked} contradicts the file; auto keeps"):
                suited(asked, kinds, 64, capability)
        else:
            assert suited(asked, kinds, 64, capability) == format


def test_auto_is_none_where_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "cpu_has_avx2", lambda: True)
    assert possible("auto", "cpu") == "auto"
    assert possible("auto", "cuda") == "auto"
    monkeypatch.setattr(formats, "cpu_has_avx2", lambda: False)
    assert possible("auto", "cpu") == "none"
    assert possible("int8", "cpu") == "int8"
    assert possible("w8a8", "cpu") == "int8", "whose inputs are rounded anyway"


def test_small_integers_on_a_gpu_are_had_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "cpu_has_avx2", lambda: False)
    assert possible("int8", "cuda") == "int8"
    assert possible("int4", "cuda") == "int4"
    assert possible("w8a8", "cuda") == "w8a8"
    assert possible("fp8", "cuda") == "fp8"


def test_int4_is_refused_without_its_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "cpu_has_avx2", lambda: False)
    with pytest.raises(ValueError, match="quantization: int4 needs a CPU with AVX2; int8 runs on any"):
        possible("int4", "cpu")


def test_floats_of_eight_bits_need_a_gpu() -> None:
    with pytest.raises(ValueError, match="quantization: fp8 needs a GPU; int8 runs on any device"):
        possible("fp8", "cpu")


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
