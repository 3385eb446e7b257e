"""Fixtures for tests of backends: engine processes without a model, see `fake_engine.py`."""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from backends.wire import EngineConfig


@pytest.fixture
def fake_command() -> list[str]:
    """Starts a fake engine when followed by a config file."""
    return [sys.executable, str(Path(__file__).parent / "fake_engine.py")]


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A private folder with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        yield Path(folder)


@pytest.fixture
def engine_config(runtime: Path) -> Callable[..., EngineConfig]:
    """Configs with addresses in the runtime folder: `engine_config("7b/0", model="quick")`."""

    def make(name: str = "e/0", model: str = "fake", **fields: object) -> EngineConfig:
        stem = runtime / name.replace("/", "-")
        defaults = {
            "address": f"ipc://{stem}.router",
            "events": f"ipc://{stem}.pub",
            "vocabulary": str(runtime / "vocabulary"),
        }
        return EngineConfig(name=name, model=model, **{**defaults, **fields})  # type: ignore[arg-type]

    (runtime / "vocabulary").touch()

    return make


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


def bytes_to_unicode() -> dict[int, str]:
    """The letter that byte-level BPE writes for each byte: itself where printable, else one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{byte: chr(byte) for byte in printable},
        **{byte: chr(0x100 + n) for n, byte in enumerate(others)},
    }
