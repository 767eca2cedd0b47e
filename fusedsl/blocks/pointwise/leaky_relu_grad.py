"""Derivative of leaky_relu: 1 above zero, else the slope."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.typing import elementwise
from fusedsl.ir import Attr, Block, Elementwise, Kind, OperandSpec, Rowwise


@triton.jit
def leaky_relu_grad(x, SLOPE: tl.constexpr):
    """1 where x > 0, else slope, in fp32 registers."""
    return tl.where(x > 0.0, 1.0, SLOPE)


def _reference(x: torch.Tensor, *, slope: float) -> torch.Tensor:
    return torch.full_like(x, slope).masked_fill(x > 0, 1.0)


BLOCK = Block(
    name="leaky_relu_grad",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("x", doc="any shape"),),
    infer=elementwise,
    reference=_reference,
    attrs=(Attr("slope", "float", default=0.01, doc="factor of negative values"),),
    laws=(Elementwise(), Rowwise()),
    triton=leaky_relu_grad,
    internal=True,
    doc="1 where x > 0, else slope",
)
