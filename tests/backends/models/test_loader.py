"""From checkpoints of all sorts to a decoder, and which checkpoints are refused."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backends.layers.embedding import Embedding
from backends.models import loader
from backends.models.checkpoint import open_checkpoint
from backends.models.decoder import Decoder
from backends.models.loader import EMBEDDING, HEAD, load_decoder
from backends.models.registry import decoder_config

CPU = torch.device("cpu")
Edit = Callable[[dict[str, torch.Tensor]], Mapping[str, torch.Tensor]]


@pytest.fixture(scope="module")
def folder(save_model: Callable[..., tuple[Path, Any]]) -> Path:
    return save_model("llama", tie_word_embeddings=False)[0]


@pytest.fixture(scope="module")
def tied_folder(save_model: Callable[..., tuple[Path, Any]]) -> Path:
    return save_model("llama", tie_word_embeddings=True)[0]


def load(folder: Path, dtype: torch.dtype = torch.float32, vocab_size: int | None = None) -> Decoder:
    checkpoint = open_checkpoint(folder)
    return load_decoder(checkpoint, decoder_config(checkpoint.config), dtype, CPU, vocab_size)


def edited(folder: Path, to: Path, edit: Edit) -> Path:
    """A copy of a checkpoint with other tensors."""
    (to / "config.json").write_bytes((folder / "config.json").read_bytes())
    tensors = edit(load_file(folder / "model.safetensors"))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, to / "model.safetensors")
    return to


def last_hidden(decoder: Decoder) -> torch.Tensor:
    return torch.linspace(-1, 1, decoder.config.width).to(decoder.embedding.dtype)[None]


def in_memory(path: Path) -> int:
    """Bytes of a file that this process has in its memory."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    heads = [at for at, line in enumerate(lines) if line.endswith(f" {path}")]
    found = [next(line for line in lines[at:] if line.startswith("Rss:")) for at in heads]
    return sum(1024 * int(line.split()[1]) for line in found)


def test_the_file_is_not_in_memory_beside_the_weights_made_of_it(
    save_model: Callable[..., tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_model("llama", hidden_size=512, intermediate_size=1536, num_hidden_layers=6)[0]
    file = folder / "model.safetensors"
    checkpoint = open_checkpoint(folder)
    shares = []
    for allowed in (1 << 40, 0):
        monkeypatch.setattr(loader, "AT_A_TIME", allowed)
        decoder = load_decoder(
            checkpoint, decoder_config(checkpoint.config), torch.bfloat16, CPU, quantization="int8"
        )
        assert decoder.vocab_size == 199
        shares.append(in_memory(file) / file.stat().st_size)
    assert shares[0] > 0.9  # else the second would say nothing
    assert shares[1] < 0.05


def test_a_head_of_its_own_is_used(folder: Path) -> None:
    decoder = load(folder)
    head = load_file(folder / "model.safetensors")[HEAD]
    x = last_hidden(decoder)
    torch.testing.assert_close(decoder.head(x), x @ head.T)


def test_a_tied_head_is_the_embedding(tied_folder: Path) -> None:
    decoder = load(tied_folder)
    x = last_hidden(decoder)
    torch.testing.assert_close(decoder.head(x), x @ decoder.embedding(torch.arange(decoder.vocab_size)).T)


def test_a_tied_head_that_is_stored_as_well_is_ignored(tied_folder: Path, tmp_path: Path) -> None:
    stored = edited(tied_folder, tmp_path, lambda tensors: {**tensors, HEAD: torch.zeros(199, 128)})
    decoder = load(stored)
    assert decoder.head(last_hidden(decoder)).abs().max() > 0.01


def test_frequencies_of_old_checkpoints_are_ignored(folder: Path, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    load(edited(folder, tmp_path, lambda tensors: {**tensors, name: torch.ones(16)}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_ids_beyond_the_tokenizer_get_no_logits(folder: Path, dtype: torch.dtype) -> None:
    whole, cut = load(folder, dtype), load(folder, dtype, vocab_size=190)
    assert (whole.vocab_size, cut.vocab_size) == (199, 190)
    x = last_hidden(whole)
    torch.testing.assert_close(cut.head(x), whole.head(x)[:, :190])


def test_a_tokenizer_larger_than_the_model_adds_no_ids(folder: Path) -> None:
    assert load(folder, vocab_size=1000).vocab_size == 199


def test_the_type_is_the_one_asked_for(folder: Path) -> None:
    decoder = load(folder, torch.bfloat16)
    assert decoder.embedding.dtype == torch.bfloat16
    assert decoder.norm.dtype == decoder.blocks[0].mlp_norm.dtype == torch.float32


def test_an_embedding_stays_as_small_as_in_the_file(folder: Path, tmp_path: Path) -> None:
    """Rows of it are expanded when they are looked up; those that are no smaller are computed with as they are."""
    halved = edited(folder, tmp_path, lambda tensors: {**tensors, EMBEDDING: tensors[EMBEDDING].bfloat16()})
    stored, ids = load_file(halved / "model.safetensors")[EMBEDDING], torch.tensor([7, 0, 198, 7])
    for dtype in (torch.float32, torch.bfloat16):
        embedding = load(halved, dtype).embedding
        assert isinstance(embedding, Embedding)
        assert embedding.table.nbytes == stored.nbytes
        assert (embedding.expand is None) == (dtype == stored.dtype)
        assert torch.equal(embedding(ids), stored[ids].to(dtype))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda tensors: {name: t for name, t in tensors.items() if name != HEAD}, f"{HEAD}: missing"),
        (
            lambda tensors: {name: t for name, t in tensors.items() if "layers.2.mlp.up" not in name},
            r"model\.layers\.2\.mlp\.up_proj\.weight: missing",
        ),
        (
            lambda tensors: {**tensors, EMBEDDING: torch.zeros(200, 128)},
            r"embed_tokens\.weight: has shape \(200, 128\), config\.json says \(199, 128\)",
        ),
        (
            lambda tensors: {**tensors, "model.layers.0.self_attn.q_norm.weight": torch.ones(32)},
            r"q_norm\.weight: the checkpoint has it, the architecture does not",
        ),
        (
            lambda tensors: {**tensors, "model.layers.3.mlp.up_proj.weight": torch.ones(192, 128)},
            r"layers\.3\.mlp\.up_proj\.weight: the checkpoint has it",
        ),
    ],
    ids=["no head", "a tensor missing", "a wrong shape", "an unknown norm", "a layer too many"],
)
def test_checkpoints_that_do_not_fit_are_refused(
    folder: Path, tmp_path: Path, edit: Edit, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(edited(folder, tmp_path, edit))


def test_biases_without_the_flag_are_refused(
    save_model: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    """A model that says it has no biases but brings some would silently compute something else."""
    folder, _ = save_model("llama", attention_bias=True)
    copy = edited(folder, tmp_path, lambda tensors: tensors)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "attention_bias": False}))
    with pytest.raises(ValueError, match=r"self_attn\.[kqvo]_proj\.bias: the checkpoint has it"):
        load(copy)
