"""What cannot be read as it is meant is refused by the name of the field or the tensor, with the reason."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from backends.models.checkpoint import CheckpointError, open_checkpoint
from backends.models.loader import load_decoder
from backends.models.registry import decoder_config
from tests.backends.models.packed.cases import CASES, Tensors
from tests.backends.models.packed.conftest import Round, Write

LAYER = "model.layers.1.mlp.down_proj"
Edit = Callable[[Tensors], object]


@pytest.fixture
def refused(write_packed: Write, to_grouped: Round) -> Callable[..., None]:
    """`refused(case, message, settings, edit)`: the case with other settings or tensors is refused with the message."""

    def check(
        case: str, message: str, settings: Mapping[str, Any] | None = None, edit: Edit = lambda tensors: None
    ) -> None:
        made = CASES[case]
        changed = {**made.settings, **(settings or {})}
        folder = write_packed(changed, lambda weight: made.pack(weight, to_grouped), edit).packed
        with pytest.raises(CheckpointError, match=re.escape(message)) as error:
            open_checkpoint(folder)
        assert str(folder) in str(error.value)

    return check


@pytest.mark.parametrize(
    ("case", "settings", "message"),
    [
        ("awq 64", {"quant_method": "hqq"}, "quant_method: 'hqq' is not supported, only 'awq', 'gptq',"),
        ("awq 64", {"quant_method": None}, "quantization_config.quant_method: missing"),
        ("awq 64", {"bits": 8}, "quantization_config.bits: 8 is not supported, only 4"),
        ("awq 64", {"version": "gemv"}, "version: 'gemv' is not supported, only 'gemm'"),
        ("awq 64", {"group_size": 0}, "group_size: 0 is neither a positive number nor -1"),
        ("awq 64", {"group_size": 40}, "qweight: 192 columns are not groups of 40"),
        ("awq 64", {"group_size": 32}, "down_proj.qzeros: has shape [3, 16], expected is [6, 16]"),
        ("gptq", {"bits": 3}, "quantization_config.bits: 3 is not supported, only 2, 4, 8"),
        ("gptq", {"bits": "4"}, "quantization_config.bits: '4' is not supported"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format: 'marlin' is not supported"),
        ("gptq", {"group_size": None}, "group_size: None is neither"),
        ("gptq", {"group_size": 128}, "qzeros: has shape [3, 16], expected is [2, 16]"),
        ("gptq", {"bits": 8}, "qzeros: has shape [3, 16], expected is [2, 32]"),
        ("gptq", {"dynamic": {"+:.*down.*": {"bits": 8}}}, "dynamic: settings of their own for some layers"),
        ("gptq", {"modules_in_block_to_quantize": [["x"]]}, "modules_in_block_to_quantize: is not supported"),
        ("gptq", {"modules_to_not_convert": "x"}, "modules_to_not_convert: 'x' is not a list of names"),
        ("gptq", {"modules_to_not_convert": ["mlp"]}, "mlp.down_proj: is quantised, but quantization_config says"),
        ("packed int4", {"format": "nvfp4-pack-quantized"}, "group_0.format: 'nvfp4-pack-quantized' is not supported"),
        ("packed int4", {"config_groups": {}}, "quantization_config.config_groups: missing"),
        ("packed int4", {"ignore": ["re:.*down_proj"]}, "down_proj: is quantised, but quantization_config says"),
        ("packed int4", {"ignore": ["re:("]}, "quantization_config.ignore: 're:(': missing )"),
        ("packed int4", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "format: 'sparse-24-bitmask'"),
        ("packed int4", {"transform_config": {"config_groups": {"a": {}}}}, "config_groups: is not supported: rot"),
        ("fp8", {"fmt": "e5m2"}, "fmt: 'e5m2' is not supported, only 'e4m3'"),
        ("fp8 blocks", {"weight_block_size": [128]}, "weight_block_size: [128] is not a pair"),
        ("fp8 blocks", {"weight_block_size": [64, 64]}, "weight_scale_inv: has shape [1, 2], not"),
        ("fp8 blocks", {"weight_block_size": None}, "has shape [1, 2], not [], [1], [1, 1], [128] or [128, 1]"),
        ("nf4", {"load_in_4bit": False}, "load_in_4bit: exactly one of"),
        ("nf4", {"load_in_8bit": True}, "load_in_4bit: exactly one of"),
    ],
)  # fmt: skip
def test_settings(case: str, settings: dict[str, Any], message: str, refused: Callable[..., None]) -> None:
    refused(case, message, settings)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"num_bits": 3}, "config_groups.group_0.num_bits: 3 is not supported, only 2, 4, 8"),
        ({"strategy": "tensor_group"}, "group_0.strategy: 'tensor_group' is not supported"),
        ({"type": "float"}, "type: 'float' does not go with the format pack-quantized"),
        ({"dynamic": True}, "dynamic: is not supported"),
        ({"symmetric": False}, "weight_zero_point: missing from the checkpoint"),
        ({"group_size": 32}, "weight_scale: has shape [128, 3], expected is [128, 6]"),
    ],
)
def test_schemes(weights: dict[str, Any], message: str, refused: Callable[..., None]) -> None:
    group = CASES["packed int4"].settings["config_groups"]["group_0"]
    changed = {**group, "weights": {**group["weights"], **weights}}
    refused("packed int4", message, {"config_groups": {"group_0": changed}})
    refused(
        "packed int4", "is quantised, but no target", {"config_groups": {"a": {**group, "targets": ["re:x"]}}}
    )


def without(suffix: str) -> Edit:
    return lambda tensors: tensors.pop(f"{LAYER}.{suffix}")


def other(suffix: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    return lambda tensors: tensors.update({f"{LAYER}.{suffix}": change(tensors[f"{LAYER}.{suffix}"])})


@pytest.mark.parametrize(
    ("case", "suffix"),
    [
        *(("awq 64", suffix) for suffix in ("qweight", "qzeros", "scales")),
        *(("gptq", suffix) for suffix in ("qweight", "qzeros", "scales")),
        *(
            ("packed int4 with zeros", f"weight_{name}")
            for name in ("packed", "scale", "shape", "zero_point")
        ),
        *(("int8 with zeros", suffix) for suffix in ("weight", "weight_scale", "weight_zero_point")),
        *(("fp8", suffix) for suffix in ("weight", "weight_scale")),
        *(("fp8 blocks", suffix) for suffix in ("weight", "weight_scale_inv")),
        *(("nf4 nested", f"weight{name}") for name in ("", ".absmax", ".quant_map", ".nested_absmax")),
        ("nf4 nested", "weight.nested_quant_map"),
        ("nf4", "weight.quant_state.bitsandbytes__nf4"),
        ("bitsandbytes int8", "SCB"),
    ],
)
def test_a_tensor_that_is_missing_is_named(case: str, suffix: str, refused: Callable[..., None]) -> None:
    refused(case, f"{LAYER}.{suffix}: missing from the checkpoint", edit=without(suffix))


@pytest.mark.parametrize(
    ("case", "edit", "message"),
    [
        ("gptq", other("g_idx", lambda t: t + 2), f"{LAYER}.g_idx: a column is of a group that is not among the 3"),
        ("gptq", other("g_idx", lambda t: t[:-1]), f"{LAYER}.g_idx: has shape [191], expected is [192]"),
        ("gptq", other("qweight", lambda t: t.float()), f"{LAYER}.qweight: has type F32, not I32"),
        ("packed int4", other("weight_shape", lambda t: t * 2), f"{LAYER}.weight_packed: has shape [128, 24]"),
        ("fp8", other("weight", lambda t: t.to(torch.float8_e5m2)), f"{LAYER}.weight: has type F8_E5M2, not F8_E4M3"),
        ("fp8", other("weight_scale", lambda t: t.repeat(3)), f"{LAYER}.weight_scale: has shape [3], not [], [1]"),
        ("nf4", other("weight", lambda t: t[:-1]), f"{LAYER}.weight: 12287 bytes do not hold 128 x 192 weights"),
        ("bitsandbytes int8", other("weight_format", lambda t: t + 1), f"{LAYER}.weight_format: an order for"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_named(
    case: str, edit: Edit, message: str, refused: Callable[..., None]
) -> None:
    refused(case, message, edit=edit)


def whole(tensors: Tensors) -> None:
    for name in [name for name in tensors if name.startswith(LAYER)]:
        del tensors[name]
    tensors[f"{LAYER}.weight"] = torch.zeros(128, 192)


def all_whole(tensors: Tensors) -> None:
    for name in [name for name in tensors if "_proj" in name]:
        del tensors[name]


def test_a_layer_that_is_whole_must_be_said_to_be(refused: Callable[..., None]) -> None:
    for case, sign in (("awq 64", "qweight"), ("packed int4", "weight_packed"), ("fp8", "weight_scale")):
        refused(
            case, f"{LAYER}.{sign}: missing from the checkpoint, though quantization_config says", edit=whole
        )
    refused("awq 64", "quantization_config says awq, but no layer has a tensor qweight", edit=all_whole)


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("awq 64", {"modules_to_not_convert": ["model.layers.1.mlp"]}),
        ("gptq", {"dynamic": {"-:.*layers\\.1\\.mlp\\.down": {}}}),
        ("packed int4", {"ignore": ["re:.*layers.1.mlp.down_proj"]}),
        ("fp8", {"ignored_layers": [LAYER]}),
        ("nf4", {"llm_int8_skip_modules": ["layers.1.mlp"]}),
    ],
)
def test_a_layer_that_is_said_to_be_whole_is_read(
    case: str, settings: dict[str, Any], write_packed: Write, to_grouped: Round
) -> None:
    made = CASES[case]

    def some_whole(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith("model.layers.1.mlp.")]:
            named = settings.get("modules_to_not_convert") or settings.get("llm_int8_skip_modules")
            if named or name.startswith(LAYER):
                del tensors[name]
        for side, shape in (("gate", (192, 128)), ("up", (192, 128)), ("down", (128, 192))):
            if not any(name.startswith(f"model.layers.1.mlp.{side}_proj.") for name in tensors):
                tensors[f"model.layers.1.mlp.{side}_proj.weight"] = torch.zeros(shape)

    folder = write_packed(
        {**made.settings, **settings}, lambda w: made.pack(w, to_grouped), some_whole
    ).packed
    assert not open_checkpoint(folder).load(f"{LAYER}.weight", torch.float32).any()


def load(folder: Any) -> None:
    checkpoint = open_checkpoint(folder)
    load_decoder(checkpoint, decoder_config(checkpoint.config), torch.float32, torch.device("cpu"))


def test_a_bias_that_adds_nothing_may_be_there(write_packed: Write, to_grouped: Round) -> None:
    """AutoGPTQ wrote one for each layer, whatever the architecture; one that adds something is refused."""
    made = CASES["gptq"]

    def write(value: float) -> Any:
        bias = torch.full((128,), value)
        return write_packed(
            made.settings, lambda w: made.pack(w, to_grouped), lambda t: t.update({f"{LAYER}.bias": bias})
        ).packed

    load(write(0.0))
    with pytest.raises(
        ValueError, match=r"down_proj\.bias: the checkpoint has it, the architecture does not"
    ):
        load(write(0.5))


def test_scales_of_a_cache_and_of_activations_are_not_needed(write_packed: Write, to_grouped: Round) -> None:
    made, scale = CASES["fp8"], torch.tensor(0.5)
    names = ("model.layers.0.self_attn.k_scale", "model.layers.0.self_attn.v_scale", f"{LAYER}.input_scale")
    extra = {name: scale.clone() for name in names}
    load(write_packed(made.settings, lambda w: made.pack(w, to_grouped), lambda t: t.update(extra)).packed)
