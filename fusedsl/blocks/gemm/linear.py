"""y = x Wᵀ (+ b) with W [N, K]: torch.nn.functional.linear, accumulated in fp32."""

from __future__ import annotations

from typing import Any

import torch

from fusedsl.blocks.typing import Attrs, Operands, row_vector, same_dtype, tile
from fusedsl.ir import (
    Block,
    Contracts,
    GraphBuilder,
    Kind,
    LinearIn,
    OperandSpec,
    Rowwise,
    TensorType,
    TypeProblem,
)


def _infer(operands: Operands, attrs: Attrs) -> TensorType:
    x, w = operands["x"], tile(operands, "w")
    if not isinstance(x, TensorType):
        raise TypeProblem("F0401", "'x' must be a tensor", operand="x", got=str(x))
    if x.cols != w.shape[1]:
        raise TypeProblem(
            "F0402",
            f"'x' has {x.cols} columns and 'w' contracts {w.shape[1]}",
            operand="w",
            expected=f"[N, {x.cols}] (linear takes the weight as [N, K])",
            got=str(w),
            fix=_layout_hint(x, w),
        )
    same_dtype({"x": x, "w": w})
    row_vector(operands, "bias", w.shape[0], "w has rows")
    return TensorType(x.dtype, (*x.shape[:-1], w.shape[0]))


def _layout_hint(x: TensorType, w: TensorType) -> str:
    if x.cols == w.shape[0]:
        return "this weight is [K, N]: use matmul(x, w)"
    return f"give 'w' the shape [N, {x.cols}]"


def _reference(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.nn.functional.linear(x, w, None if bias is None else bias.to(x.dtype))


def _expand(b: GraphBuilder, operands: dict[str, Any], attrs: dict[str, Any], name: str) -> str:
    if operands["bias"] is None:
        return b.call("linear", operands["x"], operands["w"], name=name, **attrs)
    raw = b.call("linear", operands["x"], operands["w"], out_dtype="fp32")
    out = attrs["out_dtype"]
    dtype = b.types[operands["x"]].dtype.value if out == "auto" else out
    return b.call("add", raw, operands["bias"], name=name, out_dtype=dtype)


BLOCK = Block(
    name="linear",
    kind=Kind.GEMM,
    operands=(
        OperandSpec("x", doc="[M, K], or [K]"),
        OperandSpec("w", doc="[N, K]"),
        OperandSpec("bias", optional=True, doc="[N]"),
    ),
    infer=_infer,
    reference=_reference,
    laws=(Rowwise(), LinearIn("x"), Contracts("x", "w", k_axis=1, n_axis=0)),
    expand=_expand,
    doc="x @ w.T + bias",
)
