"""What an engine says that does not come up: one line where its configuration or a file is to blame."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.tokenizer import Tokenizer, write_vocabulary
from backends.wire import EngineConfig


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"dtype": "float16"}, "dtype: float16 needs a GPU; the CPU kernels have float32 and bfloat16"),
        ({"max_model_len": 4096}, "max_model_len: 4096 is beyond the model's max_position_embeddings, 2048"),
        ({"device": "cuda:99"}, "device: cuda:99: "),
        ({"model": "/nowhere"}, "/nowhere"),
    ],
)
def test_a_mistake_is_one_line(letters_model: Path, tmp_path: Path, wrong: dict[str, Any], told: str) -> None:
    write_vocabulary(Tokenizer(letters_model), tmp_path / "vocabulary")
    config = EngineConfig(
        name="7b/0", model=str(letters_model), socket=f"{tmp_path}/s",
        vocabulary=str(tmp_path / "vocabulary"), kv_blocks=64,
    )  # fmt: skip
    file = tmp_path / "config.json"
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(config, **wrong)))
    ended = subprocess.run(
        [sys.executable, "-m", "backends.engine", str(file)], capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert told in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
