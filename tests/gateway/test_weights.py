"""What replicas run, as calibrations know it: their weights and the format these are computed in."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backends.fingerprint import fingerprint
from classifier.artefact import ArtefactError
from classifier.calibration import save
from gateway.config import Config, Engine, Remote, Tenant, Tier
from gateway.judges import Weights
from gateway.weights import MISSING, open_judges, weights_of

ACME = Tenant(name="acme")


@pytest.fixture
def model(write_gguf: Callable[..., Path], tmp_path: Path) -> str:
    return str(write_gguf(tmp_path / "model.gguf"))


def test_of_engines_and_servers(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines on the CPU take what `auto` means for it, which their own loader decides by the same function."""
    monkeypatch.setattr("backends.instructions.cpu_has_bfloat16", lambda: False)
    engines = (
        Engine(model=model),
        Engine(model=model, dtype="bfloat16"),
        Engine(model=model, quantization="int8"),
        Engine(model=model, quantization="int8", kv_cache="int8"),
        Engine(model=model, kv_cache="bf16"),
        Engine(model=model, kv_cache="fp32"),
        Engine(model=model, device="cuda:1"),
        Engine(model="nowhere"),
    )
    remotes = (Remote(url="http://127.0.0.1:1/v1", model="big", kind="vllm"),)
    mark = fingerprint(Path(model))
    assert weights_of(Tier(name="7b", engines=engines, remotes=remotes)) == [
        Weights(mark, "float32"),
        Weights(mark, "bfloat16"),
        Weights(mark, "int8"),
        Weights(mark, "int8 with KV in int8"),
        Weights(mark, "float32 with KV in bfloat16"),
        Weights(mark, "float32"),
        Weights(mark, "bfloat16"),
        Weights(MISSING, "float32"),
        Weights("remote:big", "vllm"),
    ]


@pytest.mark.parametrize(("avx2", "format"), [(True, "auto"), (False, "float32")])
def test_what_auto_keeps_is_the_file_s_where_the_cpu_can(
    avx2: bool, format: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.weights.cpu_has_avx2", lambda: avx2)
    engines = (
        Engine(model=model, dtype="float32", quantization="auto"),
        Engine(model=model, quantization="auto", device="cuda"),
        Engine(model=model, quantization="int4"),
    )
    formats = [weights.format for weights in weights_of(Tier(name="7b", engines=engines))]
    assert formats == [format, "bfloat16", "int4"]


def test_a_calibration_opens_judges_of_its_model_alone(
    model: str, tmp_path: Path, confident: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.judges")
    save(tmp_path / "c.json", confident.calibrations(fingerprint(Path(model))))
    tiers = (
        Tier(name="7b", engines=(Engine(model=model, dtype="bfloat16"),)),
        Tier(name="70b", engines=(Engine(model=model, quantization="int8"),)),
    )
    judges = open_judges(Config(tiers=tiers, calibration=str(tmp_path / "c.json")))
    assert judges.may(ACME, "7b") and not judges.may(ACME, "70b")
    judges.announce()
    assert caplog.messages[1] == "70b: not judged: calibrated for weights in bfloat16, not in int8"


def test_without_a_calibration_nobody_judges(model: str) -> None:
    judges = open_judges(Config(tiers=(Tier(name="7b", engines=(Engine(model=model),)),)))
    assert not judges.may(ACME, "7b")


def test_a_calibration_that_cannot_be_read_stops_the_start(model: str, tmp_path: Path) -> None:
    config = Config(
        tiers=(Tier(name="7b", engines=(Engine(model=model),)),), calibration=str(tmp_path / "none")
    )
    with pytest.raises(ArtefactError, match="No such file"):
        open_judges(config)
