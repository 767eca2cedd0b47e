"""x - column * row: takes the part of a row mean off a projection that read uncentred rows."""

from __future__ import annotations

import torch
import triton

from fusedsl.blocks.typing import elementwise
from fusedsl.ir import Block, Elementwise, Kind, OperandSpec, Rowwise


@triton.jit
def sub_outer(x, column, row):
    """x - column * row, in fp32 registers."""
    return x - column * row


def _reference(x: torch.Tensor, column: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return x - column * row


BLOCK = Block(
    name="sub_outer",
    kind=Kind.POINTWISE,
    operands=(
        OperandSpec("x", doc="[M, N]"),
        OperandSpec("column", doc="[M, 1]"),
        OperandSpec("row", doc="[N]"),
    ),
    infer=elementwise,
    reference=_reference,
    laws=(Elementwise(), Rowwise()),
    triton=sub_outer,
    internal=True,
    flops=2,
    doc="x - column * row",
)
