"""The container format GGUF, versions 2 and 3: metadata, and where each tensor lies.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Everything is little-endian. The header is
read here rather than by the `gguf` package, which takes 6 s and half a gigabyte for a vocabulary of 150,000
and trusts the counts that a damaged file claims.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from backends.models.stored import CheckpointError, StoredTensor
from backends.quantization.gguf import row_bytes

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# By number, the retired ones too: a type that is not supported is refused by its name.
TENSOR_TYPES = (
    "F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S "
    "IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 Q4_0_4_4 Q4_0_4_8 Q4_0_8_8 TQ1_0 TQ2_0 "
    "IQ4_NL_4_4 IQ4_NL_4_8 IQ4_NL_8_8 MXFP4 NVFP4 Q1_0"
).split()


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The parsed header; `tensors` by the file's own names, shapes as torch has them (rows first)."""

    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_gguf(path: Path) -> GgufFile:
    """Map the file and parse its header. Raises CheckpointError for damage and for tensor types it cannot read."""
    try:
        with path.open("rb") as file:
            # A private writable mapping: never written to, but torch warns about buffers it could not write to.
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return _parse(_Header(data))
    except (OSError, ValueError) as error:  # an empty file cannot be mapped: ValueError
        raise CheckpointError(f"{path}: {error}") from error


class _Header:
    """Reads forward through the header; nothing that the file claims is believed beyond the file's end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise ValueError(f"the file ends inside its header ({len(self.data)} bytes)")
        self.at += size
        return self.data[self.at - size : self.at]

    def numbers(self, code: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize(f"<{code}")
        return struct.unpack(f"<{count}{code}", self.take(size * count))

    def number(self, code: str) -> Any:
        return self.numbers(code, 1)[0]

    def string(self) -> str:
        return self.take(self.number("Q")).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind != ARRAY:
            raise ValueError(f"metadata of unknown type {kind} at byte {self.at}")
        kind, count = self.number("I"), self.number("Q")
        if kind in SCALARS:
            return list(self.numbers(SCALARS[kind], count))
        if kind != STRING:
            raise ValueError(f"an array of unknown type {kind} at byte {self.at}")
        return [self.string() for _ in range(count)]


def _parse(header: _Header) -> GgufFile:
    if header.take(4) != b"GGUF":
        raise ValueError("not a GGUF file: the first four bytes are wrong")
    version = header.number("I")
    if version not in (2, 3):
        raise ValueError(f"GGUF version {version} is not supported (2 and 3 are; others may be big-endian)")
    tensor_count, key_count = header.numbers("Q", 2)
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = header.string()
        if key in metadata:
            raise ValueError(f"metadata {key} occurs twice")
        metadata[key] = header.value(header.number("I"))
    places = [_tensor_info(header) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r}, not a positive number")
    start = -(-header.at // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    for name, type, shape, offset in places:
        if name in tensors:
            raise ValueError(f"tensor {name} occurs twice")
        tensors[name] = _stored(header.data, name, type, shape, start + offset)
    return GgufFile(metadata, tensors)


def _tensor_info(header: _Header) -> tuple[str, str, tuple[int, ...], int]:
    name = header.string()
    shape = tuple(reversed(header.numbers("Q", header.number("I"))))  # the file lists the row's length first
    kind, offset = header.number("I"), header.number("Q")
    return name, TENSOR_TYPES[kind] if kind < len(TENSOR_TYPES) else f"number {kind}", shape, offset


def _stored(data: mmap.mmap, name: str, type: str, shape: tuple[int, ...], offset: int) -> StoredTensor:
    if not shape or 0 in shape:
        raise ValueError(f"tensor {name} is empty: shape {list(shape)}")
    try:
        raw_shape = (*shape[:-1], row_bytes(type, shape[-1]))
    except ValueError as error:
        raise ValueError(f"tensor {name}: {error}") from None
    size = math.prod(raw_shape)
    if offset + size > len(data):
        raise ValueError(f"tensor {name} reaches beyond the end of the file, which was cut or damaged")

    def read() -> torch.Tensor:
        return torch.frombuffer(data, dtype=torch.uint8, count=size, offset=offset).view(raw_shape)

    return StoredTensor(type, shape, read)
