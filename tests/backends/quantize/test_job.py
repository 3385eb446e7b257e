"""A whole job on a small model: what it writes, what that loses, and what happens when it is stopped."""

import fcntl
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backends.models.checkpoint import CheckpointError
from backends.quantize.job import JobError, Order, quantize
from backends.quantize.schemes import scheme_of
from backends.quantize.settings import settings

CPU = torch.device("cpu")
Logits = Callable[[Path, Sequence[int]], torch.Tensor]
MakeModel = Callable[..., Path]

METHODS: dict[str, dict[str, Any]] = {
    "fp8": {"method": "fp8"},
    "rtn 4": {"method": "rtn", "group": 64},
    "rtn 4 asymmetric": {"method": "rtn", "group": 64, "asymmetric": True},
    "rtn 8 rows": {"method": "rtn", "bits": 8, "group": 0},
    "awq 4": {"method": "awq", "group": 64},
    "awq 8": {"method": "awq", "bits": 8, "group": 64},
    "gptq 4": {"method": "gptq", "group": 64},
    "gptq 4 dynamic": {"method": "gptq", "group": 64, "act_order": "dynamic"},
    "gptq 4 asymmetric": {"method": "gptq", "group": 64, "asymmetric": True},
    "gptq 4 rows": {"method": "gptq", "group": 0, "act_order": "none"},
    "gptq 8": {"method": "gptq", "bits": 8, "group": 32},
}


def tokens(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, 199, shape, generator=torch.Generator().manual_seed(seed))


def order(source: Path, out: Path, **asked: Any) -> Order:
    return Order(
        source=source, out=out, settings=settings(**asked), calibrate=lambda: tokens(1, 16, 48), calibration="ours",
        device=CPU,
    )  # fmt: skip


def run(made: Order) -> Path:
    quantize(made, lambda total, done: None, lambda: None)
    return made.out


def loss(logits: Logits, source: Path, quantised: Path) -> float:
    """Mean Kullback-Leibler divergence on text that is not the calibration, in nats."""
    ids = tokens(2, 150).tolist()
    before, after = logits(source, ids), logits(quantised, ids)
    return float((before.exp() * (before - after)).sum(-1).mean())


@pytest.fixture(scope="module")
def losses(qwen: Path, logits: Logits, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    folder = tmp_path_factory.mktemp("methods")
    return {
        name: loss(logits, qwen, run(order(qwen, folder / name, **asked))) for name, asked in METHODS.items()
    }


def test_four_bits_lose_clearly_less_where_the_model_is_watched(losses: dict[str, float]) -> None:
    assert losses["awq 4"] < 0.7 * losses["rtn 4 asymmetric"]
    assert losses["gptq 4"] < 0.7 * losses["rtn 4"]
    assert losses["gptq 4 asymmetric"] < 0.7 * losses["rtn 4 asymmetric"]
    assert losses["gptq 4 dynamic"] < 0.7 * losses["rtn 4"]
    assert losses["gptq 4 rows"] < losses["rtn 4"]  # although its groups are whole rows


def test_eight_bits_lose_next_to_nothing(losses: dict[str, float]) -> None:
    """Whatever is moved between a norm or a linear and the next one: nothing else is computed."""
    for name in ("rtn 8 rows", "awq 8", "gptq 8"):
        assert losses[name] < 0.005 * losses["rtn 4"], name
    assert losses["fp8"] < 0.3 * losses["rtn 4"]


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen3": {"tie_word_embeddings": False, "head_dim": 64},
    "phi3": {"tie_word_embeddings": False, "original_max_position_embeddings": 256},
    "gemma2": {"sliding_window": 16, "query_pre_attn_scalar": 32},
    "gemma3_text": {"sliding_window": 16, "query_pre_attn_scalar": 32},
}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_what_awq_moves_changes_nothing_in_any_architecture(
    kind: str, make_model: MakeModel, logits: Logits, tmp_path: Path
) -> None:
    """With eight bits what is left is small: a scale at the wrong place would show."""
    source = make_model(kind, **ARCHITECTURES[kind])
    scaled = loss(logits, source, run(order(source, tmp_path / "awq", method="awq", bits=8, group=32)))
    four = loss(logits, source, run(order(source, tmp_path / "rtn", method="rtn", group=32)))
    assert four > 1e-6 and scaled < 0.02 * four


def test_compressed_tensors_understands_its_configs() -> None:
    from compressed_tensors.quantization import QuantizationConfig

    for name in ("fp8", "rtn 4", "rtn 8 rows", "awq 8", "gptq 4 asymmetric"):
        asked = settings(**METHODS[name])
        understood = QuantizationConfig.model_validate(scheme_of(asked, torch.bfloat16).config())
        weights = understood.config_groups["group_0"].weights
        assert weights.num_bits == asked.bits and understood.ignore == ["lm_head"]
        assert weights.group_size == (asked.group or None)
        assert weights.symmetric != asked.asymmetric


def test_what_a_folder_holds(make_model: MakeModel, tmp_path: Path) -> None:
    source = make_model("llama", tie_word_embeddings=True)
    for name in (
        "tokenizer.json",
        "generation_config.json",
        "quality.json",
        "headrace.json",
        "LICENSE",
        "a.py",
    ):
        (source / name).write_text("{}")
    (source / "chat_template.jinja").write_text("{{ messages }}")
    made = run(order(source, tmp_path / "a" / "made", **METHODS["awq 4"]))
    weights = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    assert sorted(file.name for file in made.iterdir()) == sorted(
        ["LICENSE", "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors.index.json"]
        + ["tokenizer.json", *weights]
    )  # fmt: skip
    index = json.loads((made / "model.safetensors.index.json").read_text())["weight_map"]
    assert index["model.layers.1.mlp.down_proj.qweight"] == weights[1]
    assert index["model.embed_tokens.weight"] == weights[2] and "lm_head.weight" not in index
    config = json.loads((made / "config.json").read_text())
    assert config["torch_dtype"] == "float16"
    assert config["quantization_config"] == {
        "quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm",
        "modules_to_not_convert": ["lm_head"],
    }  # fmt: skip
    assert [file.name for file in made.parent.iterdir()] == ["made"]  # nothing of the work is left


class Stopped(Exception):
    """Somebody pulls the plug."""


def stopped(made: Order, after: int) -> None:
    """After so many linears."""
    count = 0

    def done() -> None:
        nonlocal count
        count += 1
        if count > after:
            raise Stopped

    with pytest.raises(Stopped):
        quantize(made, lambda total, done: None, done)


@pytest.mark.parametrize("name", ["awq 4", "gptq 4", "rtn 4"])
def test_a_stopped_job_goes_on_and_makes_the_same(name: str, qwen: Path, tmp_path: Path) -> None:
    whole = run(order(qwen, tmp_path / "whole", **METHODS[name]))
    halves = order(qwen, tmp_path / "halves", **METHODS[name])
    stopped(halves, 6)  # in the middle of the second block
    assert not halves.out.exists()
    told: list[tuple[int, int]] = []
    rest: list[int] = []
    again = replace(halves, calibrate=lambda: pytest.fail("is made anew"))
    quantize(again, lambda total, done: told.append((total, done)), lambda: rest.append(1))
    assert told == [(8, 4)] and len(rest) == 4
    for file in whole.iterdir():
        assert (halves.out / file.name).read_bytes() == file.read_bytes(), file.name


def test_blocks_of_another_job_are_not_mixed_in(qwen: Path, make_model: MakeModel, tmp_path: Path) -> None:
    first = order(qwen, tmp_path / "made", **METHODS["gptq 4"])
    stopped(first, 6)
    other = replace(first, settings=settings(method="gptq", group=32))
    with pytest.raises(
        JobError, match=r"\.made\.partial holds blocks of other settings \(group 64\); --restart"
    ):
        run(other)
    with pytest.raises(JobError, match=r"another calibration \(ours\)"):
        run(replace(first, calibration="theirs"))
    with pytest.raises(JobError, match="another model"):
        run(replace(first, source=make_model("llama", tie_word_embeddings=True)))
    made = run(replace(other, restart=True))
    assert json.loads((made / "config.json").read_text())["quantization_config"]["group_size"] == 32


def test_two_at_once_are_refused(qwen: Path, tmp_path: Path) -> None:
    work = tmp_path / ".made.partial"
    work.mkdir()
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(JobError, match="another process works there"):
            run(order(qwen, tmp_path / "made", **METHODS["rtn 4"]))


def test_what_cannot_be_quantised_is_said_before_anything_is_done(
    qwen: Path, make_model: MakeModel, tmp_path: Path
) -> None:
    made = order(qwen, tmp_path / "made", **METHODS["rtn 4"])
    odd = make_model("llama", intermediate_size=160)
    narrow = make_model("llama", num_key_value_heads=1, head_dim=4)
    (tmp_path / "there").mkdir()
    (tmp_path / "m.gguf").touch()
    (tmp_path / "broken").mkdir()
    for wrong, reason in (
        (replace(made, out=tmp_path / "there"), "there exists already"),
        (
            replace(made, source=tmp_path / "m.gguf"),
            "convert it to a folder first: python -m backends.convert",
        ),
        (replace(made, source=odd), r"--group: 64 does not divide the 160 columns of .*down_proj; 32 does"),
        (
            order(narrow, tmp_path / "made", method="awq", group=0),
            r"model\.layers\.0\.self_attn\.k_proj: AWQ's layout holds multiples of 8 rows, not 4",
        ),
    ):
        with pytest.raises(JobError if "k_proj" not in reason else ValueError, match=reason):
            run(wrong)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        run(replace(made, source=tmp_path / "broken"))
    assert not list(tmp_path.glob(".*"))


def test_what_would_be_left_out_is_refused(qwen: Path, tmp_path: Path) -> None:
    strange = tmp_path / "strange"
    shutil.copytree(qwen, strange)
    tensors = load_file(strange / "model.safetensors")
    tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = torch.ones(4)  # is computed anyway
    save_file(tensors, strange / "model.safetensors")
    run(order(strange, tmp_path / "made", **METHODS["rtn 4"]))
    save_file(tensors | {"model.layers.1.mlp.gate.bias": torch.ones(4)}, strange / "model.safetensors")
    with pytest.raises(JobError, match=r"^model\.layers\.1\.mlp\.gate\.bias: the checkpoint has it"):
        run(order(strange, tmp_path / "other", **METHODS["rtn 4"]))


def test_a_quantised_model_is_no_source(qwen: Path, tmp_path: Path) -> None:
    once = run(order(qwen, tmp_path / "once", **METHODS["rtn 4"]))
    with pytest.raises(ValueError, match="quantization_config|is quantised already"):
        run(order(once, tmp_path / "twice", **METHODS["rtn 4"]))
