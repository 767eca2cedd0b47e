"""Each row times the row of a weight that its index names: the terms of one picked logit.

The kernel loads the rows of the weight through the index; NaN where the index names none.
"""

from __future__ import annotations

import torch
import triton

from fusedsl.blocks.typing import Attrs, Operands, index_of, tile
from fusedsl.ir import Block, DType, Gathers, Kind, OperandSpec, Rowwise, TensorType, TypeProblem


@triton.jit
def mul_picked(x, w, index):
    """x * w, in fp32 registers, where row i of w is the one that index i names."""
    return x * w


def _infer(operands: Operands, attrs: Attrs) -> TensorType:
    x, w = tile(operands, "x"), tile(operands, "w")
    index_of(operands, "index", x.rows, "x")
    if x.cols != w.cols:
        raise TypeProblem(
            "F0402",
            "the rows of 'w' are as long as those of 'x'",
            operand="w",
            expected=f"{w.dtype}[{w.rows}, {x.cols}]",
            got=str(w),
            fix="pick rows of the weight that x is projected by",
        )
    return TensorType(DType.FP32, x.shape)


def _reference(x: torch.Tensor, w: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    index = index.reshape(-1).long()
    inside = (index >= 0) & (index < len(w))
    rows = w[torch.where(inside, index, 0)]
    return torch.where(inside[:, None], x * rows, torch.nan)


BLOCK = Block(
    name="mul_picked",
    kind=Kind.POINTWISE,
    operands=(
        OperandSpec("x", doc="[M, K]"),
        OperandSpec("w", doc="[N, K]"),
        OperandSpec("index", index=True, doc="i32[M] or i64[M]: a row of w for each of x"),
    ),
    infer=_infer,
    reference=_reference,
    laws=(Rowwise(), Gathers("x", "w", "index")),
    triton=mul_picked,
    internal=True,
    doc="x * w[index], NaN in the rows whose index is no row of w",
)
