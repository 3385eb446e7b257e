"""The block that is being quantised: it runs as any other, and each linear quantises itself when its inputs come.

So one pass through the block does all, and every linear sees the inputs that the quantised ones before it give.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from backends.layers.linear import Linear
from backends.models.checkpoint import Checkpoint
from backends.models.config import DecoderConfig
from backends.models.decoder import Block
from backends.models.loader import block_of
from backends.quantization.grid import evened
from backends.quantization.grouped import Grouped
from backends.quantize.schemes import Made, Scheme, rows_of

Told = Callable[[], object]  # that a linear is done


class Subject:
    """One block. `run` it, then `tensors` are what is to be stored."""

    def __init__(
        self, checkpoint: Checkpoint, config: DecoderConfig, prefix: str, scheme: Scheme, device: torch.device
    ) -> None:
        """`prefix`: of its tensors' names. Raises ValueError naming a tensor that is missing or of the wrong shape."""
        self._source = _Source(checkpoint, config.norm_offset, scheme, device)
        self.block: Block = block_of(self._source, config, prefix)
        self.linears: Sequence[Pending] = self._source.linears
        qkv, output, gate_up, down = self.linears
        attention_norm, mlp_norm = self._source.outer_norms
        keys, width = config.kv_heads * config.head_dim, config.mlp_width
        queries = config.heads * config.head_dim
        heads = (config.kv_heads, config.heads // config.kv_heads, config.head_dim)
        qkv.before, gate_up.before = _Norm(self._source, attention_norm), _Norm(self._source, mlp_norm)
        output.before = _Rows(qkv, slice(queries + keys, queries + 2 * keys), heads)
        down.before = _Rows(gate_up, slice(width, 2 * width), (1, 1, width))

    @property
    def read(self) -> frozenset[str]:
        """The names of the source's tensors that the block consists of."""
        return frozenset(self._source.used)

    def tensors(self) -> dict[str, torch.Tensor]:
        """By Hugging Face's names. Raises ValueError for numbers that the type of storage does not hold."""
        return {
            **self._source.stored_norms(),
            **{k: v for each in self.linears for k, v in each.tensors().items()},
        }


class Pending:
    """A linear of one or more projections, whose rows stand one below another."""

    def __init__(
        self,
        names: Sequence[str],
        rows: Sequence[int],
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        scheme: Scheme,
    ) -> None:
        self.before: _Norm | _Rows | None = None
        self.bias = bias
        self.made: Made | None = None
        self.done: Told = lambda: None
        self.names = names
        self.columns = weight.shape[1]
        self._rows = rows
        self._weight: torch.Tensor | None = weight
        self._scheme = scheme

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x float32 [tokens, in]: the inputs of the whole calibration."""
        made = self.quantise(x)
        weight = made.weight.dequantized()
        if made.scales is not None:
            weight /= made.scales
        return torch.nn.functional.linear(x, weight, self.bias)

    def check_packing(self) -> None:
        """Whether the format can hold these shapes. Raises ValueError naming the projection."""
        assert self._weight is not None
        rounded, start = self._scheme.rounded(self._weight), 0
        for name, count in zip(self.names, self._rows, strict=True):
            try:
                self._scheme.pack(rows_of(rounded, start, start + count))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
            start += count

    def quantise(self, inputs: torch.Tensor | None) -> Made:
        """Once. Raises ValueError naming the projection."""
        assert self._weight is not None
        before = self.before
        seen = None if inputs is None else evened(inputs)
        try:
            made = self._scheme.quantised(self._weight, seen, None if before is None else before.fit)
        except ValueError as error:
            raise ValueError(f"{', '.join(self.names)}: {error}") from error
        self.made, self._weight = made, None
        if made.scales is not None:
            assert before is not None
            before.divide(made.scales)
        self.done()
        return made

    def divide_rows(self, rows: slice, divisors: torch.Tensor) -> None:
        """The outputs of those rows, after they are quantised: it is the scales of their groups that change."""
        assert self.made is not None and isinstance(self.made.weight, Grouped)
        scales = self.made.weight.scales.float()
        scales[rows] /= divisors[:, None]
        self.made = Made(replace(self.made.weight, scales=scales.to(self._scheme.dtype)), self.made.scales)
        if self.bias is not None:
            self.bias = self.bias.clone()
            self.bias[rows] /= divisors

    def tensors(self) -> dict[str, torch.Tensor]:
        assert self.made is not None
        found: dict[str, torch.Tensor] = {}
        start = 0
        for name, count in zip(self.names, self._rows, strict=True):
            packed = self._scheme.pack(rows_of(self.made.weight, start, start + count))
            found |= {f"{name}.{kind}": tensor for kind, tensor in packed.items()}
            if self.bias is not None:
                found[f"{name}.bias"] = stored(
                    f"{name}.bias", self.bias[start : start + count], self._scheme.dtype
                )
            start += count
        return found


@dataclass(frozen=True, slots=True)
class _Norm:
    """A norm before a linear: its weights are divided."""

    source: "_Source"
    name: str

    def fit(self, scales: torch.Tensor) -> torch.Tensor:
        """Such that the divided weights are what the type of storage holds; then nothing is lost."""
        weight, offset = self.source.norms_by_name[self.name], self.source.offset
        divided = (weight / scales - offset).to(self.source.scheme.dtype).float() + offset
        return torch.where(divided == 0, 1.0, weight / divided).abs()

    def divide(self, scales: torch.Tensor) -> None:
        self.source.norms_by_name[self.name] = self.source.norms_by_name[self.name] / scales


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of another linear, whose outputs come in as they are, or multiplied by something.

    `shape`: [heads, times, size]; each of heads · size outputs comes in several times, as values do where several
    queries share them.
    """

    linear: Pending
    rows: slice
    shape: tuple[int, int, int]

    def fit(self, scales: torch.Tensor) -> torch.Tensor:
        """Alike wherever an output comes in."""
        heads, times, size = self.shape
        return scales.view(heads, times, size).mean(1, keepdim=True).expand(heads, times, size).flatten()

    def divide(self, scales: torch.Tensor) -> None:
        self.linear.divide_rows(self.rows, scales.view(self.shape)[:, 0].flatten())


@dataclass
class _Source:
    """Gives `block_of` its norms and linears, and keeps what they are called."""

    checkpoint: Checkpoint
    offset: float  # of norms
    scheme: Scheme
    device: torch.device
    linears: list[Pending] = field(default_factory=list)
    outer_norms: list[str] = field(default_factory=list)  # before attention, and before the MLP
    norms_by_name: dict[str, torch.Tensor] = field(default_factory=dict)  # what each multiplies by
    used: set[str] = field(default_factory=set)

    def norm(self, name: str, width: int) -> torch.Tensor:
        self.outer_norms.append(name)
        return self._norm(name, width)

    def norms(self, names: Sequence[str], width: int) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = (self._norm(f"{name}.weight", width) for name in names)
        return first, second

    def fused(self, names: Sequence[str], rows: Sequence[int], columns: int, bias: bool) -> Linear:
        weights = [self._load(f"{name}.weight", n, columns) for name, n in zip(names, rows, strict=True)]
        biases = [self._load(f"{name}.bias", n) for name, n in zip(names, rows, strict=True)] if bias else []
        self.linears.append(
            Pending(names, rows, torch.cat(weights), torch.cat(biases) if biases else None, self.scheme)
        )
        return self.linears[-1]

    def stored_norms(self) -> dict[str, torch.Tensor]:
        return {
            name: stored(name, weight - self.offset, self.scheme.dtype)
            for name, weight in self.norms_by_name.items()
        }

    def _norm(self, name: str, width: int) -> torch.Tensor:
        self.norms_by_name[name] = self._load(name, width) + self.offset
        return self.norms_by_name[name]

    def _load(self, name: str, *shape: int) -> torch.Tensor:
        self.used.add(name)
        found = self.checkpoint.stored(name).shape
        if found != shape:
            raise ValueError(f"{name}: has shape {found}, config.json says {shape}")
        return self.checkpoint.load(name, torch.float32).to(self.device)


def stored(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """In the type of storage. Raises ValueError where it does not hold the numbers."""
    converted = tensor.to(dtype)
    if not converted.isfinite().all():
        raise ValueError(f"{name}: has weights that {str(dtype).removeprefix('torch.')} does not hold")
    return converted
