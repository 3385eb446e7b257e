"""Real models for every test that wants them, small ones made on the spot, and how properties are tested."""

import asyncio
import json
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, settings
from tokenizers import decoders, models, pre_tokenizers

from backends.catalogue import find
from backends.pull import pull

# A shell has what it starts in the background ignore Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

WriteGguf = Callable[..., Path]

# A machine that stalls makes no property false.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


Eventually = Callable[[Callable[[], object]], Awaitable[None]]


@pytest.fixture(scope="session")
def eventually() -> Eventually:
    """`await eventually(lambda: …)`: until it is true. How long that takes says nothing on a machine that stalls."""

    async def wait(what: Callable[[], object]) -> None:
        deadline = time.monotonic() + 120.0
        while not what():
            assert time.monotonic() < deadline, "it did not come true"
            await asyncio.sleep(0.005)

    return wait


Patiently = Callable[[Callable[[float], Awaitable[None]], float], Awaitable[None]]


@pytest.fixture(scope="session")
def patiently() -> Patiently:
    """`await patiently(check, 1.0)`: `check(seconds)` of something that lives so long, and again with three times as
    many where it fails: a machine that stalls for so long is rare, a fault is there each time."""

    async def run(check: Callable[[float], Awaitable[None]], seconds: float) -> None:
        for longer in (seconds, 3 * seconds):
            try:
                return await check(longer)
            except Exception:
                continue
        await check(9 * seconds)

    return run


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct, pulled (93 MB) unless it is there. Mark tests that use it `models`."""
    return pull(find("smollm2-135m-instruct"))


@pytest.fixture(scope="session")
def qwen_05b_folder() -> Path:
    """Qwen2.5-Coder-0.5B-Instruct, where it is pulled. Mark tests that use it `models`."""
    entry = find("qwen2.5-coder-0.5b-instruct")
    if not entry.present:
        pytest.skip(f"{entry.name} is not pulled: headrace models pull {entry.name}")
    return entry.folder


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder without weights, whose token ids are the bytes of the text."""
    folder = tmp_path_factory.mktemp("bytes")
    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


@pytest.fixture(scope="session")
def letters_model(byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says the letter after each letter, and is the surer of it the further in the alphabet it is.

    Its block does nothing; embedding and head are random, but for what they have to be for that.
    """
    import torch
    from safetensors.torch import save_file

    width, vocabulary = 32, 256
    config = {
        "model_type": "llama", "hidden_size": width, "intermediate_size": width, "num_hidden_layers": 1,
        "num_attention_heads": 1, "vocab_size": vocabulary, "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("letters")
    shutil.copytree(byte_model, folder, dirs_exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(4)
    embedding = torch.nn.functional.normalize(torch.randn(vocabulary, width))
    head = torch.zeros(vocabulary, width)
    for letter in range(ord("a"), ord("z")):
        head[letter + 1] = embedding[letter] * (letter - ord("a") + 10) / width**0.5
    block = "model.layers.0."
    shapes = {f"self_attn.{side}_proj": (width, width) for side in "qkvo"} | {
        f"mlp.{name}_proj": (width, width) for name in ("gate", "up", "down")
    }
    tensors = {f"{block}{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
    for norm in (f"{block}input_layernorm", f"{block}post_attention_layernorm", "model.norm"):
        tensors[f"{norm}.weight"] = torch.ones(width)
    save_file(
        tensors | {"model.embed_tokens.weight": embedding, "lm_head.weight": head},
        folder / "model.safetensors",
    )
    return folder


def bytes_to_unicode() -> dict[int, str]:
    """The letter that byte-level BPE writes for each byte: itself where printable, else one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{byte: chr(byte) for byte in printable},
        **{byte: chr(0x100 + n) for n, byte in enumerate(others)},
    }


@pytest.fixture(scope="session")
def write_gguf() -> WriteGguf:
    """A function (path, architecture, format, metadata, leave_out, extra) that writes a model of two small layers.

    `format` is that of all matrices; `metadata` adds to or replaces (None: removes) what is written;
    `leave_out` names tensors to omit, `extra` tensors to add. Weights are random but always the same.
    """
    return _write_gguf


CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
HIDDEN, FFN, HEADS, KV_HEADS, VOCABULARY = 64, 96, 4, 2, 288


def _write_gguf(
    path: Path,
    architecture: str = "llama",
    format: str = "Q8_0",
    metadata: dict[str, Any] | None = None,
    leave_out: frozenset[str] = frozenset(),
    extra: dict[str, np.ndarray] | None = None,
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (_metadata(architecture) | (metadata or {})).items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            add: dict[type, Any] = {str: writer.add_string, float: writer.add_float32, bool: writer.add_bool}
            add.get(value.__class__, writer.add_uint32)(key, value)
    random = np.random.default_rng(3)
    for name, shape in _shapes(architecture).items():
        weights = random.standard_normal(shape, dtype=np.float32)
        if name in leave_out:
            continue
        kind = gguf.GGMLQuantizationType[format if len(shape) == 2 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
    for name, weights in (extra or {}).items():
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(architecture: str) -> dict[str, Any]:
    """The smallest byte-level tokenizer: one token a byte, two merges, three control tokens, ids without meaning."""
    alphabet = [chr(n) for n in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144))]
    tokens = [*alphabet, "he", "ĠĠ", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    padding = [f"[PAD{n}]" for n in range(len(tokens), VOCABULARY)]
    return {
        f"{architecture}.block_count": 2,
        f"{architecture}.context_length": 128,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": FFN,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens + padding,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 3) + [3] * 3 + [5] * len(padding),
        "tokenizer.ggml.merges": ["h e", "Ġ Ġ"],
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _shapes(architecture: str) -> dict[str, tuple[int, ...]]:
    key_rows = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCABULARY, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    shapes["output.weight"] = (VOCABULARY, HIDDEN)
    for layer in range(2):
        rows = {"attn_q": HIDDEN, "attn_k": key_rows, "attn_v": key_rows, "attn_output": HIDDEN}
        shapes |= {f"blk.{layer}.{part}.weight": (n, HIDDEN) for part, n in rows.items()}
        shapes |= {f"blk.{layer}.{part}.weight": (FFN, HIDDEN) for part in ("ffn_gate", "ffn_up")}
        shapes[f"blk.{layer}.ffn_down.weight"] = (HIDDEN, FFN)
        shapes |= {f"blk.{layer}.{part}.weight": (HIDDEN,) for part in ("attn_norm", "ffn_norm")}
        if architecture == "qwen2":
            shapes |= {f"blk.{layer}.{part}.bias": (rows[part],) for part in ("attn_q", "attn_k", "attn_v")}
    return shapes
