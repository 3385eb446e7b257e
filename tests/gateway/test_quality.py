"""The gate before a quantised model: which records open it, and where it closes."""

import json
import shutil
from pathlib import Path

import pytest
from msgspec import structs

from backends.fingerprint import fingerprint
from gateway import quality
from gateway.cli import main
from gateway.config import Config, Engine, Tier
from gateway.configfile import ConfigError, parse_config
from gateway.engines import engine_configs
from gateway.quality import Record, TaskLoss


def loss(task: str, low: float, middle: float, high: float) -> TaskLoss:
    return TaskLoss(
        task=task, kind="answers", digest="0" * 64, items=50, model=0.5, against=0.6, loss=middle, low=low, high=high
    )  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "small-awq"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def record(model: Path) -> Record:
    tasks = (loss("text.txt", 0.001, 0.008, 0.012), loss("humaneval.jsonl", -0.01, 0.005, 0.018))
    return Record(
        model=fingerprint(model), quantization="none", against="f" * 64, against_name="small", made="now", tasks=tasks
    )  # fmt: skip


def reason(model: Path, gate: str, quantization: str = "none") -> str | None:
    engine = Engine(model=str(model), quantization=quantization)  # type: ignore[arg-type]
    tier = Tier(name="7b", engines=(engine,), quality_gate=gate)
    return next((told for _, told in quality.faults(Config(tiers=(tier,)))), None)


def test_the_upper_end_of_the_worst_task_is_what_counts(model: Path, record: Record) -> None:
    quality.save(model, record)
    assert reason(model, "2%") is None and reason(model, "1.8%") is None
    told = reason(model, "1.5%")
    assert told is not None and told.endswith(
        "may have lost 1.8% on humaneval.jsonl (upper end of a 90% interval around 0.5%), more than 1.5%"
    )
    assert reason(model, "0%") is not None


def test_a_model_of_which_nothing_is_recorded_is_refused_with_the_command(
    model: Path, record: Record
) -> None:
    command = f"measure it: headrace evaluate model --model {model} --against WHOLE_MODEL --tasks FILE..."
    told = reason(model, "2%")
    assert told is not None and f"nobody has recorded what {model} loses; {command}" in told
    quality.save(model, record)
    told = reason(model, "2%", "int8")
    assert told is not None and "with quantization int8 (only with none)" in told
    assert "--quantization int8 --against" in told
    quality.save(model, structs.replace(record, quantization="int8"))
    assert reason(model, "2%", "int8") is None and reason(model, "2%") is None  # both are kept


def test_tasks_that_are_not_measured_again_stay_in_the_record(model: Path, record: Record) -> None:
    """An easier one alone used to open the gate."""
    worse = structs.replace(record, tasks=(loss("hard", 0.1, 0.2, 0.3), loss("text", 0.0, 0.0, 0.1)))
    quality.save(model, worse)
    better = loss("text", 0.0, 0.0, 0.0)
    _, whole = quality.save(model, structs.replace(record, tasks=(better,)))
    assert whole.tasks == (worse.tasks[0], better) and quality.load(model) == (whole,)
    assert reason(model, "2%") is not None
    other = structs.replace(record, against="e" * 64, tasks=(better,))
    assert quality.save(model, other)[1] == other  # against other weights, a record begins anew


def test_a_record_of_other_weights_counts_for_nothing(model: Path, record: Record, tmp_path: Path) -> None:
    quality.save(model, record)
    (model / "model.safetensors").write_bytes(b"Weights")
    told = reason(model, "2%")
    assert told is not None and "is of other weights; measure it: " in told
    copied = tmp_path / "copy"
    shutil.copytree(model, copied)
    (copied / "model.safetensors").write_bytes(b"weights")
    assert reason(copied, "2%") is None  # whatever the folder is called


def test_a_damaged_record_is_named(model: Path) -> None:
    for content, why in ((b"{", "truncated"), (b'{"version": 2, "records": []}', "is of version 2, not 1")):
        quality.path_of(model).write_bytes(content)
        told = reason(model, "2%")
        assert told is not None and "quality.json" in told and why in told


def test_a_gguf_file_has_its_record_beside_it(tmp_path: Path) -> None:
    assert quality.path_of(tmp_path / "m.gguf") == tmp_path / "m.gguf.quality.json"


def test_no_engine_starts_behind_a_closed_gate(model: Path, record: Record, tmp_path: Path) -> None:
    config = Config(tiers=(Tier(name="7b", engines=(Engine(model=str(model), quality_gate="1%"),)),))
    with pytest.raises(ValueError, match=r"^tiers\[0\]\.engines\[0\]\.quality_gate: nobody has recorded"):
        engine_configs(config, tmp_path)
    quality.save(model, record)
    with pytest.raises(ValueError, match="more than 1.0%"):
        engine_configs(config, tmp_path)
    open_wide = structs.replace(config.tiers[0], quality_gate="0%")  # the engine's own stands above it
    engines = (structs.replace(config.tiers[0].engines[0], quality_gate="3%"),)
    config = Config(tiers=(structs.replace(open_wide, engines=engines),))
    assert [each.model for each in engine_configs(config, tmp_path)] == [str(model)]


TIER = "tiers: [{name: 7b, quality_gate: GATE, engines: [{model: MODEL}]}]"


@pytest.mark.parametrize("gate", ["2", "0.02", "101%", "-1%", "2 %", "2%%", "%"])
def test_a_gate_is_a_percentage(gate: str) -> None:
    with pytest.raises(ConfigError, match=r"quality_gate: must be a percentage from 0% to 100%, such as 2%"):
        parse_config(TIER.replace("GATE", json.dumps(gate)).replace("MODEL", "/m"), "c.yaml")


@pytest.mark.parametrize("gate", ["2%", "0%", "0.5%", "100%"])
def test_percentages_are_taken_as_they_stand(gate: str) -> None:
    config = parse_config(TIER.replace("GATE", gate).replace("MODEL", "/m"), "c.yaml")
    assert config.tiers[0].quality_gate == gate


def test_config_check_tells_of_gates(
    letters_model: Path, record: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "letters"
    shutil.copytree(letters_model, model)
    file = tmp_path / "c.yaml"
    file.write_text(TIER.replace("GATE", "1%").replace("MODEL", str(model)))
    assert main(["config", "check", str(file)]) == 2
    assert f"{file}:1: tiers[0].quality_gate: nobody has recorded" in capsys.readouterr().err
    told = structs.replace(record, model=fingerprint(model), tasks=(loss("t", 0, 0, 0.01),))
    quality.save(model, told)
    assert main(["config", "check", str(file)]) == 0
    file.write_text(TIER.replace("GATE", "1%").replace("MODEL", "/nowhere/at-all"))
    assert main(["config", "check", str(file)]) == 0
    assert "the quality gate of /nowhere/at-all is not checked" in capsys.readouterr().out
