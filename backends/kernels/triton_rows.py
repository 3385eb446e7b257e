"""What is done to each row alone between two products, in Triton: norms, and the MLP's gate. All in float32."""

import torch
import triton
import triton.language as tl

from backends.kernels.triton_types import OPTIONS

HEADS = 8  # of one token that a program takes
COLUMNS = 1024  # of one row, likewise


def add_norm(
    residual: torch.Tensor | None, update: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> None:
    """As `reference.Kernels.add_norm`, into `out`; without a residual the norm of `update` itself."""
    width = update.shape[1]
    norm[(len(update),)](
        update, residual, weight, out, update.stride(0), eps, WIDTH=width, **norm_options(width)
    )


def norm_options(width: int) -> dict[str, int]:
    columns = triton.next_power_of_2(width)
    return {"COLUMNS": columns, "num_warps": min(max(columns // 512, 1), 16), **OPTIONS}


def gated(gate_up: torch.Tensor, out: torch.Tensor, *, gelu: bool) -> None:
    """As `reference.Kernels.gelu_mul` or `silu_mul`, into `out`."""
    width = out.shape[1]
    gate_mul[(len(out), triton.cdiv(width, COLUMNS))](
        gate_up, out, gate_up.stride(0), WIDTH=width, COLUMNS=COLUMNS, GELU=gelu, **OPTIONS
    )


def norm_heads(
    qkv: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, heads: int, kv_heads: int, eps: float
) -> None:
    """As `reference.Kernels.norm_heads`, of `heads` queries and `kv_heads` keys."""
    size = len(queries)
    norm_each[(len(qkv), triton.cdiv(heads + kv_heads, HEADS))](
        qkv, queries, keys, qkv.stride(0), eps,
        QUERIES=heads, NORMED=heads + kv_heads, SIZE=size, HEADS=HEADS, COLUMNS=triton.next_power_of_2(size),
        **OPTIONS,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def norm(
    update: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    row_stride: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, COLUMNS)
    is_in = columns < WIDTH
    x = tl.load(update + row * row_stride + columns, mask=is_in, other=0.0).to(tl.float32)
    if residual is not None:
        x += tl.load(residual + row * WIDTH + columns, mask=is_in, other=0.0)
        tl.store(residual + row * WIDTH + columns, x, mask=is_in)
    inverse = tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps)
    normed = x * inverse * tl.load(weight + columns, mask=is_in, other=0.0)
    tl.store(out + row * WIDTH + columns, normed.to(out.dtype.element_ty), mask=is_in)


@triton.jit  # type: ignore[untyped-decorator]
def norm_each(
    qkv: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    row_stride: tl.tensor,
    eps: tl.tensor,
    QUERIES: tl.constexpr,
    NORMED: tl.constexpr,
    SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    heads, columns = tl.program_id(1) * HEADS + tl.arange(0, HEADS), tl.arange(0, COLUMNS)
    is_in = (heads < NORMED)[:, None] & (columns < SIZE)[None, :]
    at = qkv + tl.program_id(0).to(tl.int64) * row_stride + heads[:, None] * SIZE + columns[None, :]
    x = tl.load(at, mask=is_in, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, 1) / SIZE + eps)
    of_query = tl.load(queries + columns, mask=columns < SIZE, other=0.0)
    of_key = tl.load(keys + columns, mask=columns < SIZE, other=0.0)
    weight = tl.where((heads < QUERIES)[:, None], of_query[None, :], of_key[None, :])
    tl.store(at, (x * inverse[:, None] * weight).to(qkv.dtype.element_ty), mask=is_in)


@triton.jit  # type: ignore[untyped-decorator]
def gate_mul(
    gate_up: tl.tensor,
    out: tl.tensor,
    row_stride: tl.tensor,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    GELU: tl.constexpr,
) -> None:
    """Both gates are gate · sigmoid(s), with s the gate itself or twice what gelu's tanh takes: nothing cancels."""
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_in = columns < WIDTH
    gate = tl.load(gate_up + row * row_stride + columns, mask=is_in, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + WIDTH + columns, mask=is_in, other=0.0).to(tl.float32)
    steep = gate
    if GELU:
        steep = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # 2 · sqrt(2 / π)
    steep = tl.maximum(steep, -80.0)  # exp stays finite
    result = gate / (1 + tl.exp(-steep)) * up
    tl.store(out + row * WIDTH + columns, result.to(out.dtype.element_ty), mask=is_in)
