"""max(x, 0) squared (Nemotron, Primer); NaN stays NaN."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.pointwise.common import Cotangents, Names, NodeAttrs, NodeOperands, times
from fusedsl.blocks.typing import elementwise
from fusedsl.ir import Block, Elementwise, GraphBuilder, HomogeneousIn, Kind, OperandSpec, Rowwise


@triton.jit
def squared_relu(x):
    """max(x, 0) squared, in fp32 registers."""
    positive = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return positive * positive


def _reference(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x).square()


def _vjp(
    b: GraphBuilder, operands: NodeOperands, attrs: NodeAttrs, results: Names, cotangents: Names
) -> Cotangents:
    return times(b, cotangents, b.call("mul", 2.0, b.call("relu", operands["x"])))


BLOCK = Block(
    name="squared_relu",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("x", doc="any shape"),),
    infer=elementwise,
    reference=_reference,
    laws=(Elementwise(), Rowwise(), HomogeneousIn("x", 2)),
    triton=squared_relu,
    vjp=_vjp,
    flops=2,
    doc="max(x, 0) squared",
)
