"""A model on disk: a folder of safetensors files, or one GGUF file. Nothing in it is ever executed.

A folder is Hugging Face's: config.json, generation_config.json if there is one, and model.safetensors or the files
that model.safetensors.index.json lists. Folders that `backends.convert` made keep GGUF's blocks: the tensor is then
uint8 [rows, bytes of a row], and the safetensors metadata `headrace.gguf` says, as JSON, {name: {type, shape}}. What
other tools quantised is read as `backends.models.packed` says, by the `quantization_config` of config.json.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from backends.models.fields import ConfigError
from backends.models.gguf import open_gguf
from backends.models.packed.files import FileTensor
from backends.models.packed.methods import settings_of, unpacked
from backends.models.stored import WHOLE, CheckpointError, Part, Stored, StoredTensor
from backends.quantization.gguf import FORMATS, row_bytes

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
        tensors: Mapping[str, Stored],
    ) -> None:
        self.path = path
        self.config = config  # what config.json holds
        self.generation = generation  # what generation_config.json holds; empty where there is none
        self._tensors = tensors

    def names(self) -> frozenset[str]:
        """Hugging Face's names of all tensors."""
        return frozenset(self._tensors)

    def stored(self, name: str) -> Stored:
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
            return tensor.load(dtype, part)
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
    generation = folder / "generation_config.json"
    files: dict[str, FileTensor] = {}
    blocks: dict[str, GgufBlocks] = {}
    for file, wanted in _files(folder):
        tensors, described = _open_safetensors(file, wanted)
        files |= tensors
        blocks |= described
    return Checkpoint(
        folder,
        config,
        _json(generation) if generation.exists() else {},
        _weights(folder, config, files, blocks),
    )


def _weights(
    folder: Path, config: Mapping[str, Any], files: Mapping[str, FileTensor], blocks: Mapping[str, GgufBlocks]
) -> dict[str, Stored]:
    """By Hugging Face's names: those that other tools packed, and all that are no part of these."""
    packed: dict[str, Stored] = {}
    used: frozenset[str] = frozenset()
    try:
        if settings := settings_of(config):
            packed, used = unpacked(settings, files)
    except ConfigError as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}") from error
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    plain = {name: _stored(tensor, blocks.get(name)) for name, tensor in files.items() if name not in used}
    return plain | packed


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


def _open_safetensors(
    path: Path, wanted: frozenset[str] | None
) -> tuple[dict[str, FileTensor], dict[str, GgufBlocks]]:
    try:
        file: Any = safe_open(path, framework="pt")
        names = frozenset(file.keys())
        described = (file.metadata() or {}).get(GGUF_BLOCKS, "{}")
        blocks = msgspec.json.decode(described, type=dict[str, GgufBlocks])
        if missing := (wanted or frozenset()) - names:
            raise ValueError(f"tensor {min(missing)} is missing, though the index promises it")
        tensors = {name: _file_tensor(file, name) for name in sorted(wanted or names)}
        for name in blocks.keys() & tensors.keys():
            _check(name, tensors[name], blocks[name])
        return tensors, blocks
    except (OSError, SafetensorError, ValueError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def _file_tensor(file: Any, name: str) -> FileTensor:
    slice = file.get_slice(name)
    return FileTensor(slice.get_dtype(), tuple(slice.get_shape()), lambda: file.get_tensor(name))


def _check(name: str, tensor: FileTensor, blocks: GgufBlocks) -> None:
    type, shape = tensor.type, tensor.shape
    if type != "U8" or shape != (*blocks.shape[:-1], row_bytes(blocks.type, blocks.shape[-1])):
        raise ValueError(f"tensor {name}: {type} {shape} does not hold {blocks.shape} in {blocks.type}")


def _stored(tensor: FileTensor, blocks: GgufBlocks | None) -> StoredTensor:
    if blocks is not None:
        return StoredTensor(blocks.type, blocks.shape, tensor.read)
    if tensor.type not in FORMATS:
        # Buffers of other types may lie beside the weights; only a model that asks for one fails, by name.
        return StoredTensor(tensor.type, tensor.shape, tensor.read)
    return StoredTensor(tensor.type, tensor.shape, lambda: tensor.read().view(torch.uint8))
