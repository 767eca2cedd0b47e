"""Derivative of silu."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.fast_math import fast_sigmoid, sigmoid_slope
from fusedsl.blocks.typing import elementwise
from fusedsl.ir import Block, Elementwise, Kind, OperandSpec, Rowwise


@triton.jit
def silu_grad(x, FAST: tl.constexpr):
    """sigmoid(x) * (1 + x * (1 - sigmoid(x))), in fp32 registers."""
    return fast_sigmoid(x, FAST) + x * sigmoid_slope(x, FAST)


def _reference(x: torch.Tensor) -> torch.Tensor:
    s = torch.sigmoid(x)
    return s * (1 + x * (1 - s))


BLOCK = Block(
    name="silu_grad",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("x", doc="any shape"),),
    infer=elementwise,
    reference=_reference,
    laws=(Elementwise(), Rowwise()),
    triton=silu_grad,
    internal=True,
    flops=12,
    doc="sigmoid(x) * (1 + x * (1 - sigmoid(x)))",
)
