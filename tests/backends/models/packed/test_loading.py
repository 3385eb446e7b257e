"""Each format through the loader: the logits are those of the weights that the file stands for."""

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from backends.instructions import cpu_has_avx2
from backends.kernels.layout import KVCache, Layout, Span
from backends.kernels.select import Place
from backends.models.checkpoint import open_checkpoint
from backends.models.decoder import Decoder, kernels_of
from backends.models.loader import load_decoder
from backends.models.registry import decoder_config
from backends.models.stored import Part
from backends.quantization.packing import gptq
from backends.wire import Quantization
from tests.backends.models.packed.cases import CASES, Case, Tensors
from tests.backends.models.packed.conftest import Round, Write, Written

A100 = Place(torch.device("cpu"), (8, 0))  # with plain products
CPU, IDS = torch.device("cpu"), torch.tensor([5, 17, 198, 0, 3, 3, 77, 150, 42])
NAME = "model.layers.1.mlp.down_proj.weight"

written: dict[str, Written] = {}


@pytest.fixture
def folders(case: str, write_packed: Write, to_grouped: Round) -> Written:
    """Each is written once."""
    if case not in written:
        made = CASES[case]
        written[case] = write_packed(made.settings, lambda weight: made.pack(weight, to_grouped))
    return written[case]


def load(folder: Path, quantization: Quantization = "none", place: Place | None = None) -> Decoder:
    checkpoint = open_checkpoint(folder)
    config = decoder_config(checkpoint.config)
    return load_decoder(checkpoint, config, torch.float32, CPU, quantization=quantization, place=place)


def logits(folder: Path, place: Place | None = None) -> torch.Tensor:
    model = load(folder, place=place)
    config = model.config
    cache = KVCache(config.layers, 1, 16, config.kv_heads, config.head_dim, dtype=torch.float32, device=CPU)
    layout = Layout([Span(0, len(IDS), [0], 0)], cache)
    with torch.inference_mode():
        return model.forward(IDS, layout, torch.arange(len(IDS)), kernels_of(config, cache, 16))


def products(model: Decoder) -> list[torch.Tensor]:
    """Of each linear of a layer with the same inputs."""
    block, random = model.blocks[1], torch.Generator().manual_seed(7)
    return [
        linear(torch.randn(5, 192 if linear is block.down else 128, generator=random))
        for linear in (block.qkv, block.output, block.gate_up, block.down)
    ]


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_weights_that_are_meant(case: str, folders: Written) -> None:
    torch.testing.assert_close(logits(folders.packed), logits(folders.whole), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_on_gpus_too_where_it_stays_packed(
    case: str, folders: Written, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever kernels for GPUs can multiply by does, without being asked for."""
    caplog.set_level(logging.INFO, "backends.models.loader")
    torch.testing.assert_close(logits(folders.packed, A100), logits(folders.whole), rtol=1e-4, atol=1e-4)
    kept = CASES[case].on_a_gpu
    told = [f"quantization none: 12 linears in {kept}, 1 linears in float32"] if kept else []
    assert [each.message for each in caplog.records if each.name == "backends.models.loader"] == told


@pytest.mark.parametrize("case", ["awq 32", "int8 rows", "fp8 blocks"])
def test_what_contradicts_the_file_is_refused_by_name(case: str, folders: Written) -> None:
    asked: Quantization = "int4" if case == "int8 rows" else "int8"
    with pytest.raises(
        ValueError, match=rf"q_proj.weight: is .* in the file: quantization: {asked} contradicts"
    ):
        load(folders.packed, asked, A100)


@pytest.mark.parametrize("case", CASES)
def test_any_part_is_what_it_is_of_the_whole(case: str, folders: Written) -> None:
    """Rows that begin within a word and within a block, as ranks have them; and columns."""
    stored, whole = open_checkpoint(folders.packed).stored(NAME), open_checkpoint(folders.whole).stored(NAME)
    assert stored.shape == whole.shape == (128, 192)
    everything = stored.load(torch.float32)
    torch.testing.assert_close(everything, whole.load(torch.float32), rtol=1e-6, atol=1e-7)
    for part in (
        Part((range(3, 90),)),
        Part((range(1, 2), range(37, 128)), range(5, 100)),
        Part(None, range(64, 128)),
    ):
        rows = torch.cat([everything[run.start : run.stop] for run in part.rows or (range(128),)])
        columns = part.columns or range(192)
        assert torch.equal(stored.load(torch.float32, part), rows[:, columns.start : columns.stop])
        if stored.kind != "small" and part.columns is None:
            torch.testing.assert_close(stored.packed(part).dequantized(), rows, rtol=1e-6, atol=1e-7)
    assert stored.load(torch.bfloat16).equal(everything.bfloat16())


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case.kept == "int4"])
def test_four_bits_are_kept_exactly(case: str, folders: Written) -> None:
    stored = open_checkpoint(folders.packed).stored(NAME)
    assert torch.equal(stored.four_bits().dequantized(), stored.load(torch.float32))
    part = Part((range(1, 2), range(37, 128)))
    assert torch.equal(stored.four_bits(part).dequantized(), stored.load(torch.float32, part))


@pytest.mark.parametrize(("case", "made"), CASES.items())
def test_the_engine_keeps_one_format_and_says_which(
    case: str, made: Case, folders: Written, caplog: pytest.LogCaptureFixture
) -> None:
    """Eight bits are rounded from the weights that are meant; four bits are those weights."""
    if not cpu_has_avx2():
        pytest.skip("int4 needs a CPU with AVX2")
    caplog.set_level(logging.INFO, "backends.models")
    small = products(load(folders.packed, "auto"))
    assert f"quantization auto: 12 linears in {made.kept}, 1 linears in float32" in caplog.messages
    rounded = products(load(folders.whole, "int8"))
    for ours, whole, eight in zip(small, products(load(folders.whole)), rounded, strict=True):
        if made.kept == "int8":
            torch.testing.assert_close(ours, eight, rtol=1e-4, atol=1e-4)
        assert (ours - whole).norm() / whole.norm() < 0.015


@pytest.mark.parametrize(
    ("case", "said", "shown"), [("gptq v2 said to be v1", 1, 2), ("gptq v1 said to be v2", 2, 1)]
)
def test_a_wrong_label_is_seen_and_said(
    case: str, said: int, shown: int, folders: Written, caplog: pytest.LogCaptureFixture
) -> None:
    open_checkpoint(folders.packed)
    (message,) = caplog.messages
    assert f"says version {said} of GPTQ's layout, the zeros are those of version {shown}" in message


def test_zeros_that_gptqmodel_wrote_borrow_from_one_another(write_packed: Write, to_grouped: Round) -> None:
    made = CASES["gptq v2"]

    def pack(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        grouped = to_grouped(weight, 4, 64)
        grouped.zeros[::5] = 0
        tensors = gptq.pack(grouped, 2)
        tensors["qzeros"] -= 0x11111111
        return tensors, grouped.dequantized()

    meta = {"checkpoint_format": "gptq", "meta": {"quantizer": ["gptqmodel:5.0.0"]}}
    folders = write_packed({**made.settings, **meta}, pack)
    ours, meant = (
        open_checkpoint(folder).load(NAME, torch.float32) for folder in (folders.packed, folders.whole)
    )
    assert torch.equal(ours, meant)


@pytest.mark.parametrize("case", ["awq 64"])
def test_what_the_file_has_is_said(case: str, folders: Written, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "backends.models.packed")
    open_checkpoint(folders.packed)
    assert caplog.messages == ["the file has 21 linears in awq of 4 bits"]


def test_columns_in_an_order_of_their_own_in_each_projection(
    write_packed: Write, to_grouped: Round, caplog: pytest.LogCaptureFixture
) -> None:
    """Queries, keys and values then cannot be one linear of four bits; the others can."""
    caplog.set_level(logging.INFO, "backends.models.loader")
    made = CASES["gptq in order"]
    folders = write_packed(
        made.settings, lambda weight: made.pack(weight, to_grouped), lambda tensors: _reverse(tensors)
    )
    small = products(load(folders.packed, "auto"))
    assert "9 linears in int4, 3 linears in int8, 1 linears in float32" in caplog.messages[0]
    for ours, whole in zip(small, products(load(folders.packed)), strict=True):
        assert (ours - whole).norm() / whole.norm() < 0.015


def _reverse(tensors: Tensors) -> None:
    for name in tensors:
        if "q_proj.g_idx" in name:
            tensors[name] = 1 - tensors[name]


@pytest.mark.parametrize("case", ["awq 64", "nf4 nested"])
def test_the_index_alone_says_where_a_part_of_a_weight_is(
    case: str, folders: Written, tmp_path: Path
) -> None:
    """The parts in two files, and in a third one beside them others of the same names."""
    tensors = load_file(folders.packed / "model.safetensors")
    shards = {"one.safetensors": sorted(tensors)[::2], "two.safetensors": sorted(tensors)[1::2]}
    for file, names in shards.items():
        save_file({name: tensors[name] for name in names}, tmp_path / file)
    save_file(
        {name: torch.zeros_like(each) for name, each in tensors.items()}, tmp_path / "model.safetensors"
    )
    weight_map = {name: file for file, names in shards.items() for name in names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_bytes((folders.packed / "config.json").read_bytes())
    torch.testing.assert_close(logits(tmp_path), logits(folders.whole), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stored", [False, True])
def test_a_tied_head_is_the_embedding(
    stored: bool, write_packed: Write, to_grouped: Round, tmp_path: Path
) -> None:
    """Also where a head is stored as well, packed or not."""
    made = CASES["awq 32"]

    def head(tensors: Tensors) -> None:
        del tensors["lm_head.weight"]
        if stored:
            packed, _ = made.pack(torch.randn(200, 128), to_grouped)
            tensors.update({f"lm_head.{suffix}": each for suffix, each in packed.items()})

    folder = write_packed(
        made.settings, lambda weight: made.pack(weight, to_grouped), head, tie_word_embeddings=True
    ).packed
    model, x = load(folder), torch.randn(3, 128)
    torch.testing.assert_close(model.head(x), x @ model.embedding(torch.arange(model.vocab_size)).T)


def test_a_packed_head_is_a_linear_like_others(
    write_packed: Write, to_grouped: Round, caplog: pytest.LogCaptureFixture
) -> None:
    made = CASES["awq 32"]
    meant: Tensors = {}

    def head(tensors: Tensors) -> None:
        whole = tensors.pop("lm_head.weight")
        filled = torch.nn.functional.pad(whole, (0, 0, 0, 1))  # to 200 rows
        packed, meant["head"] = made.pack(filled, to_grouped)
        tensors.update({f"lm_head.{suffix}": each for suffix, each in packed.items()})
        tensors["model.embed_tokens.weight"] = torch.nn.functional.pad(
            tensors["model.embed_tokens.weight"], (0, 0, 0, 1)
        )

    folder = write_packed(
        made.settings, lambda weight: made.pack(weight, to_grouped), head, vocab_size=200
    ).packed
    x = torch.randn(3, 128)
    torch.testing.assert_close(load(folder).head(x), x @ meant["head"].T)
    caplog.set_level(logging.INFO, "backends.models.loader")
    load(folder, "auto")
    assert "13 linears in int4" in caplog.messages[0]


@pytest.mark.parametrize("case", ["packed int4", "packed int8"])
@pytest.mark.filterwarnings("ignore")  # of theirs
def test_transformers_reads_the_same(case: str, folders: Written) -> None:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(
        folders.packed, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        expected = theirs(IDS[None]).logits[0]
    torch.testing.assert_close(logits(folders.packed), expected, rtol=1e-4, atol=1e-4)
