"""1 / (1 + exp(-x))."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.fast_math import fast_sigmoid
from fusedsl.blocks.pointwise.common import Cotangents, Names, NodeAttrs, NodeOperands, times
from fusedsl.blocks.typing import elementwise
from fusedsl.ir import Block, Elementwise, GraphBuilder, Kind, OperandSpec, Positive, Rowwise


@triton.jit
def sigmoid(x, FAST: tl.constexpr):
    """1 / (1 + exp(-x)), in fp32 registers."""
    return fast_sigmoid(x, FAST)


def _reference(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x)


def _vjp(
    b: GraphBuilder, operands: NodeOperands, attrs: NodeAttrs, results: Names, cotangents: Names
) -> Cotangents:
    (y,) = results
    return times(b, cotangents, b.call("mul", y, b.call("sub", 1.0, y)))


BLOCK = Block(
    name="sigmoid",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("x", doc="any shape"),),
    infer=elementwise,
    reference=_reference,
    laws=(Elementwise(), Rowwise(), Positive()),
    triton=sigmoid,
    vjp=_vjp,
    flops=8,
    doc="1 / (1 + exp(-x))",
)
