"""Hyperbolic tangent."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.fast_math import fast_tanh
from fusedsl.blocks.pointwise.common import Cotangents, Names, NodeAttrs, NodeOperands, times
from fusedsl.blocks.typing import elementwise
from fusedsl.ir import Block, Elementwise, GraphBuilder, Kind, OperandSpec, Rowwise


@triton.jit
def tanh(x, FAST: tl.constexpr):
    """tanh(x), in fp32 registers."""
    return fast_tanh(x, FAST)


def _reference(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


def _vjp(
    b: GraphBuilder, operands: NodeOperands, attrs: NodeAttrs, results: Names, cotangents: Names
) -> Cotangents:
    (y,) = results
    return times(b, cotangents, b.call("sub", 1.0, b.call("mul", y, y)))


BLOCK = Block(
    name="tanh",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("x", doc="any shape"),),
    infer=elementwise,
    reference=_reference,
    laws=(Elementwise(), Rowwise()),
    triton=tanh,
    vjp=_vjp,
    flops=12,
    doc="tanh(x)",
)
