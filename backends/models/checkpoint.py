"""A model on disk: a folder of safetensors files, or one GGUF file. Nothing in it is ever executed.

A folder is Hugging Face's: config.json, generation_config.json if there is one, and model.safetensors or the files
that model.safetensors.index.json lists. Folders that `backends.convert` made keep GGUF's blocks: the tensor is then
uint8 [rows, bytes of a row], and the safetensors metadata `headrace.gguf` says, as JSON, {name: {type, shape}}.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from backends.models.gguf import open_gguf
from backends.models.stored import WHOLE, CheckpointError, Part, StoredTensor, rows_of
from backends.quantization.gguf import FORMATS, columns_of, dequantize, row_bytes

__all__ = ["GGUF_BLOCKS", "Checkpoint", "CheckpointError", "GgufBlocks", "open_checkpoint"]

GGUF_BLOCKS = "headrace.gguf"  # key of the safetensors metadata
PICKLED = {".bin", ".pt", ".pth", ".ckpt"}
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class GgufBlocks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the uint8 rows of one tensor mean: GGUF's name of the format, and the shape in weights."""

    type: str
    shape: tuple[int, ...]


class Checkpoint:
    """Config and tensors of a model; a tensor is read and dequantised when it is asked for."""

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        generation: dict[str, Any],
        tensors: Mapping[str, StoredTensor],
    ) -> None:
        self.path = path
        self.config = config  # what config.json holds
        self.generation = generation  # what generation_config.json holds; empty where there is none
        self._tensors = tensors

    def names(self) -> frozenset[str]:
        """Hugging Face's names of all tensors."""
        return frozenset(self._tensors)

    def stored(self, name: str) -> StoredTensor:
        """The tensor as it lies on disk. Raises CheckpointError where there is none of this name."""
        if name not in self._tensors:
            raise CheckpointError(f"{self.path}: tensor {name} is missing")
        return self._tensors[name]

    def load(self, name: str, dtype: torch.dtype, part: Part = WHOLE) -> torch.Tensor:
        """The tensor, or only `part` of it, in `dtype`, on the CPU. It may be a view of the file: not to be written to.

        Raises CheckpointError for a missing tensor and for a format that is not supported.
        """
        tensor = self.stored(name)
        try:
            raw = rows_of(tensor.read(), part)
            if part.columns is None:
                return dequantize(raw, tensor.type, dtype)
            return columns_of(raw, tensor.type, part.columns, dtype)
        except ValueError as error:
            raise CheckpointError(f"{self.path}: tensor {name}: {error}") from error


def open_checkpoint(path: Path) -> Checkpoint:
    """Read everything but the weights. Raises CheckpointError, which names file and reason."""
    if path.is_dir():
        return _open_folder(path)
    if path.suffix in PICKLED:
        raise CheckpointError(
            f"{path}: pickled weights can run code and are refused; use safetensors or GGUF"
        )
    if not path.is_file():
        raise CheckpointError(f"{path}: no such model file or folder")
    if path.suffix != ".gguf":
        raise CheckpointError(f"{path}: neither a folder nor a .gguf file")
    return Checkpoint(path, *open_gguf(path))


def _open_folder(folder: Path) -> Checkpoint:
    config = _json(folder / "config.json")
    if quantized := config.get("quantization_config"):
        raise CheckpointError(
            f"{folder / 'config.json'}: quantization_config ({quantized}) is not supported; "
            "use the unquantised weights or a GGUF file"
        )
    generation = folder / "generation_config.json"
    tensors: dict[str, StoredTensor] = {}
    for file, wanted in _files(folder):
        tensors |= _open_safetensors(file, wanted)
    return Checkpoint(folder, config, _json(generation) if generation.exists() else {}, tensors)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return content


def _files(folder: Path) -> Iterator[tuple[Path, frozenset[str] | None]]:
    """Each file with the tensors to take from it (None: all). Files that the index does not name are ignored."""
    if (folder / _INDEX).exists():
        weight_map = _json(folder / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{folder / _INDEX}: weight_map is missing or empty")
        for file in sorted({str(file) for file in weight_map.values()}):
            if file != Path(file).name or not file.endswith(".safetensors"):
                raise CheckpointError(f"{folder / _INDEX}: {file!r} is not a safetensors file of this folder")
            yield folder / file, frozenset(name for name, at in weight_map.items() if at == file)
    elif (folder / _SINGLE).exists():
        yield folder / _SINGLE, None
    else:
        pickled = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLED)
        reason = f"; pickled weights are refused: {', '.join(pickled)}" if pickled else ""
        raise CheckpointError(f"{folder}: neither {_SINGLE} nor {_INDEX}{reason}")


def _open_safetensors(path: Path, wanted: frozenset[str] | None) -> dict[str, StoredTensor]:
    try:
        file: Any = safe_open(path, framework="pt")
        names = frozenset(file.keys())
        described = (file.metadata() or {}).get(GGUF_BLOCKS, "{}")
        blocks = msgspec.json.decode(described, type=dict[str, GgufBlocks])
        if missing := (wanted or frozenset()) - names:
            raise ValueError(f"tensor {min(missing)} is missing, though the index promises it")
        return {name: _stored(file, name, blocks.get(name)) for name in sorted(wanted or names)}
    except (OSError, SafetensorError, ValueError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def _stored(file: Any, name: str, blocks: GgufBlocks | None) -> StoredTensor:
    slice = file.get_slice(name)
    type, shape = slice.get_dtype(), tuple(slice.get_shape())
    if blocks is not None:
        if type != "U8" or shape != (*blocks.shape[:-1], row_bytes(blocks.type, blocks.shape[-1])):
            raise ValueError(f"tensor {name}: {type} {shape} does not hold {blocks.shape} in {blocks.type}")
        return StoredTensor(blocks.type, blocks.shape, lambda: file.get_tensor(name))
    if type not in FORMATS:
        # Buffers of other types may lie beside the weights; only a model that asks for one fails, by name.
        return StoredTensor(type, shape, lambda: file.get_tensor(name))
    return StoredTensor(type, shape, lambda: file.get_tensor(name).view(torch.uint8))
