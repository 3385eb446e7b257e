"""Converted folders: transformers must read them as it reads the model, or rather as the model's authors meant it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
import torch

from backends.catalogue import LAYOUT, MANIFEST, Manifest
from backends.convert import convert
from backends.models.checkpoint import CheckpointError, open_checkpoint
from backends.models.stored import StoredTensor
from backends.prompt import Prompt
from backends.tokenizer import Tokenizer

WriteGguf = Callable[..., Path]
TEXTS = [
    "",
    "Hello, world! It's 10:45.",
    "def f(x):\n    if x:\n\t\treturn x  # done\n\n\n",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "今天天气很好。我们去公园吧！",
    "👩‍👩‍👧‍👦 family, e\u0301 combined, \u200bzero width",
    "a\0b\r\nc   \t d",
    "<|im_start|>user\nhi<|im_end|>\n",
    "1234567890 3.14 x²",
]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, write_gguf: WriteGguf) -> tuple[Path, Path]:
    """A small GGUF file and the folder made of it."""
    base = tmp_path_factory.mktemp("convert")
    source = write_gguf(base / "small.gguf", format="Q4_1")
    convert(source, base / "folder")
    return source, base / "folder"


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def tokenizer_of(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_the_folder_holds_what_the_file_holds(converted: tuple[Path, Path]) -> None:
    source, folder = (open_checkpoint(path) for path in converted)
    assert {key: folder.config[key] for key in source.config} == source.config
    assert folder.generation == source.generation
    assert folder.names() == source.names()
    for name in source.names():
        ours, theirs = folder.stored(name), source.stored(name)
        assert isinstance(ours, StoredTensor) and isinstance(theirs, StoredTensor)
        assert ours.type == theirs.type
        assert torch.equal(ours.read(), theirs.read()), name


def test_blocks_keep_their_size_on_disk(converted: tuple[Path, Path]) -> None:
    source, folder = converted
    assert (folder / "model.safetensors").stat().st_size < source.stat().st_size * 1.1


def test_the_manifest_says_where_it_came_from(converted: tuple[Path, Path]) -> None:
    manifest = msgspec.json.decode((converted[1] / MANIFEST).read_bytes(), type=Manifest)
    assert (manifest.layout, manifest.source, len(manifest.sha256)) == (LAYOUT, "small.gguf", 64)


def test_the_chat_template_and_the_special_tokens_are_the_files(converted: tuple[Path, Path]) -> None:
    config = read(converted[1] / "tokenizer_config.json")
    assert config["chat_template"].startswith("{% for m in messages %}<|im_start|>")
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")


def test_ids_that_stand_for_nothing_are_left_out(converted: tuple[Path, Path]) -> None:
    """The model has 288 rows, 27 of which only fill up."""
    tokenizer = tokenizer_of(converted[1])
    assert open_checkpoint(converted[1]).config["vocab_size"] == 288
    assert tokenizer.get_vocab_size() == 261 and tokenizer.id_to_token(260) == "<|im_end|>"


def test_control_tokens_are_whole(converted: tuple[Path, Path]) -> None:
    assert tokenizer_of(converted[1]).encode("he<|im_end|>").tokens == ["he", "<|im_end|>"]


def test_digits_stand_alone_where_the_file_says_so(converted: tuple[Path, Path]) -> None:
    """`smollm` splits digits off first: the two spaces before one are a token, as before nothing else."""
    tokenizer = tokenizer_of(converted[1])
    assert tokenizer.encode("  1").tokens == ["ĠĠ", "1"]
    assert tokenizer.encode("  x").tokens == ["Ġ", "Ġ", "x"]


@pytest.mark.parametrize(
    ("architecture", "specials", "tokens"),
    [
        ("llama", ["<unk>", "<s>", "</s>"], ["<s>", "▁he", "▁he", "<0xC3>", "<0xA9>"]),
        (
            "gemma3",
            ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"],
            ["<bos>", "he", "▁he", "<0xC3>", "<0xA9>"],
        ),
    ],
)
def test_a_sentencepiece_tokenizer(
    tmp_path: Path, write_gguf: WriteGguf, architecture: str, specials: list[str], tokens: list[str]
) -> None:
    """The other kind: spaces as U+2581, unknown characters as bytes, a BOS before plain text. Llama's puts a space
    before everything, Gemma's does not."""
    spelled = [*specials, *(f"<0x{n:02X}>" for n in range(256)), "▁", "h", "e", "he", "▁he"]
    size = len(spelled)
    spelled += [f"[PAD{n}]" for n in range(size, 288)]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": None,
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.tokens": spelled,
        "tokenizer.ggml.scores": [-float(n) for n in range(288)],
        "tokenizer.ggml.token_type": [3] * len(specials) + [6] * 256 + [1] * 5 + [5] * (288 - size),
        "tokenizer.ggml.bos_token_id": spelled.index(tokens[0]),
        "tokenizer.ggml.eos_token_id": next(
            id for id, text in enumerate(spelled) if text in ("</s>", "<eos>")
        ),
        "tokenizer.ggml.unknown_token_id": spelled.index("<unk>"),
        "tokenizer.ggml.add_bos_token": True,
    }
    convert(write_gguf(tmp_path / "spm.gguf", architecture, metadata=metadata), tmp_path / "folder")
    tokenizer = Tokenizer(tmp_path / "folder")
    ids = tokenizer.encode_now(Prompt(text="he heé"))
    assert [spelled[id] for id in ids] == tokens
    spoken = b"".join(tokenizer.vocabulary()[id] for id in ids)
    assert spoken == tokens[1].replace("▁", " ").encode() + " heé".encode()
    assert len(tokenizer.vocabulary()) == size


def test_an_unknown_pre_tokenizer_is_refused(tmp_path: Path, write_gguf: WriteGguf) -> None:
    """Any other split of words would give wrong ids without a word; nothing is left of the attempt."""
    source = write_gguf(tmp_path / "odd.gguf", metadata={"tokenizer.ggml.pre": "odd"})
    with pytest.raises(CheckpointError, match="tokenizer.ggml.pre 'odd' is not supported; known are gpt-2, "):
        convert(source, tmp_path / "folder")
    assert list(tmp_path.iterdir()) == [source]


def test_a_folder_is_never_overwritten(tmp_path: Path, converted: tuple[Path, Path]) -> None:
    with pytest.raises(CheckpointError, match="exists already"):
        convert(converted[0], converted[1])


def test_the_command_names_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    command = [sys.executable, "-m", "backends.convert", str(tmp_path / "bad.gguf"), str(tmp_path / "folder")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"error: {tmp_path}/bad.gguf: the file ends inside its header (4 bytes)\n"


@pytest.mark.models
def test_smollm2_splits_words_as_its_authors_tokenizer(smollm2_folder: Path) -> None:
    """transformers' conversion of the file misses the digits; what the Hub's tokenizer.json has is written here."""
    tokenizer = tokenizer_of(smollm2_folder)
    reference = tokenizer_of(smollm2_folder)
    split = [
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
    ]
    reference.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(split)
    for text in [*TEXTS, "x =    1\n        22"]:
        assert tokenizer.encode(text).ids == reference.encode(text).ids
    assert tokenizer.encode("x =    1").tokens == ["x", "Ġ=", "ĠĠĠĠ", "1"]


@pytest.mark.models
def test_qwen2_encodes_as_transformers_own_class(qwen_05b_folder: Path) -> None:
    from transformers import Qwen2Tokenizer

    model = read(qwen_05b_folder / "tokenizer.json")["model"]
    theirs = Qwen2Tokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])
    ours = tokenizer_of(qwen_05b_folder)
    for text in TEXTS:
        if "<|" not in text:  # the bare class knows one control token only
            assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text), text
