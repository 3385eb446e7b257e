"""`python -m backends.convert FILE.gguf FOLDER`: a GGUF file as a Hugging Face folder, made once.

The folder holds config.json, generation_config.json, model.safetensors (GGUF's blocks as they are, see
`backends.models.checkpoint`), tokenizer.json, tokenizer_config.json with the file's chat template, and our manifest.
This is the only module that imports transformers, for its conversion of tokenizers; it runs in a process of its own.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from backends.catalogue import LAYOUT, MANIFEST, Manifest
from backends.models.checkpoint import GGUF_BLOCKS, Checkpoint, CheckpointError, GgufBlocks, open_checkpoint
from backends.models.gguf_file import read_gguf
from backends.models.stored import StoredTensor
from backends.quantization.gguf import FORMATS

_UNUSED = 5  # the token type of ids that only pad the vocabulary
_DIGITS = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
)
# By `tokenizer.ggml.pre`, what transformers leaves out of a byte-level tokenizer that it makes from a GGUF file,
# though the model's own tokenizer.json has it. Without `smollm`'s digits, "x =  1" becomes other tokens than those
# that the model was trained on.
_BYTE_LEVEL: dict[str, dict[str, Any]] = {
    "gpt-2": {},
    "llama-bpe": {"ignore_merges": True},
    "qwen2": {"normalizer": normalizers.NFC()},
    "smollm": {"pre_tokenizer": _DIGITS},
}


def convert(source: Path, folder: Path) -> None:
    """Make `folder`, whole or not at all. Raises CheckpointError for a file that cannot be converted."""
    if folder.exists():
        raise CheckpointError(f"{folder} exists already")
    checkpoint = open_checkpoint(source)
    metadata = read_gguf(source).metadata
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        _write_weights(checkpoint, partial / "model.safetensors")
        _write_json(partial / "config.json", checkpoint.config | {"torch_dtype": "bfloat16"})
        _write_json(partial / "generation_config.json", checkpoint.generation)
        _write_tokenizer(source, metadata, partial)
        manifest = Manifest(LAYOUT, source.name, _sha256(source))
        (partial / MANIFEST).write_bytes(msgspec.json.encode(manifest))
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # there only if something failed


def _write_weights(checkpoint: Checkpoint, path: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    blocks: dict[str, GgufBlocks] = {}
    for name in sorted(checkpoint.names()):
        stored = checkpoint.stored(name)
        assert isinstance(stored, StoredTensor), "all tensors of a GGUF file are"
        dtype = FORMATS[stored.type].dtype
        tensors[name] = stored.read() if dtype is None else stored.read().view(dtype)
        if dtype is None:
            blocks[name] = GgufBlocks(stored.type, stored.shape)
    save_file(tensors, path, metadata={"format": "pt", GGUF_BLOCKS: msgspec.json.encode(blocks).decode()})
    path.chmod(0o644)  # safetensors leaves it to its owner alone, unlike the files beside it


def _write_tokenizer(source: Path, metadata: dict[str, Any], folder: Path) -> None:
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer = made.backend_tokenizer
    if metadata["tokenizer.ggml.model"] == "gpt2":
        _complete(tokenizer, metadata.get("tokenizer.ggml.pre", "gpt-2"))
    content = json.loads(tokenizer.to_str())
    _drop_padding(content["model"], metadata)
    _write_json(folder / "tokenizer.json", content)
    special = {f"{role}_token": getattr(made, f"{role}_token") for role in ("bos", "eos", "pad", "unk")}
    template = metadata.get("tokenizer.chat_template")
    _write_json(folder / "tokenizer_config.json", special | {"chat_template": template})


def _complete(tokenizer: Tokenizer, pre: str) -> None:
    """Set what the file's `tokenizer.ggml.pre` stands for. Raises CheckpointError for a name that is not known."""
    if pre not in _BYTE_LEVEL:
        raise CheckpointError(
            f"tokenizer.ggml.pre {pre!r} is not supported; known are {', '.join(_BYTE_LEVEL)}"
        )
    for part, value in _BYTE_LEVEL[pre].items():
        setattr(tokenizer.model if part == "ignore_merges" else tokenizer, part, value)


def _drop_padding(model: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Take the ids that stand for nothing off the end of a BPE vocabulary, so that its size is the real one."""
    types = metadata.get("tokenizer.ggml.token_type", [])
    size = len(types)
    while size and types[size - 1] == _UNUSED:
        size -= 1
    if types and isinstance(model["vocab"], dict):
        model["vocab"] = {token: id for token, id in model["vocab"].items() if id < size}


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m backends.convert", description="GGUF file to model folder."
    )
    parser.add_argument("source", type=Path, help="a .gguf file")
    parser.add_argument("folder", type=Path, help="the folder to make")
    arguments = parser.parse_args(argv)
    try:
        convert(arguments.source, arguments.folder)
    except (ValueError, OSError, SafetensorError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
