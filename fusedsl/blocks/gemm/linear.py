"""y = x Wᵀ (+ b) with W [N, K]: torch.nn.functional.linear, accumulated in fp32.

The laws hold for a call without a bias; one with a bias expands into a projection and a sum.
"""

from __future__ import annotations

from typing import Any

import torch

from fusedsl.blocks.gemm.common import expand_projection, projection
from fusedsl.blocks.typing import Attrs, Operands
from fusedsl.ir import (
    Block,
    Contracts,
    GraphBuilder,
    Kind,
    LinearIn,
    OperandSpec,
    Rowwise,
    TensorType,
)


def _infer(operands: Operands, attrs: Attrs) -> TensorType:
    return projection(operands, block="linear", other="matmul", k_axis=1)


def _reference(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    bias = None if bias is None else bias.to(x.dtype)
    return torch.nn.functional.linear(x, w, bias)


def _expand(b: GraphBuilder, operands: dict[str, Any], attrs: dict[str, Any], name: str) -> str:
    return expand_projection(b, "linear", operands, attrs, name)


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
    laws=(
        Rowwise(),
        LinearIn("x"),
        LinearIn("w"),
        Contracts("x", "w", k_axis=1, n_axis=0),
    ),
    expand=_expand,
    doc="x @ w.T + bias",
)
