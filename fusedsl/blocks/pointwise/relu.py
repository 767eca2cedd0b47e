"""max(x, 0); NaN stays NaN."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.pointwise.common import Cotangents, Names, NodeAttrs, NodeOperands, times
from fusedsl.blocks.typing import elementwise
from fusedsl.ir import Block, Elementwise, GraphBuilder, HomogeneousIn, Kind, OperandSpec, Rowwise


@triton.jit
def relu(x):
    """max(x, 0), in fp32 registers."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


def _reference(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


def _vjp(
    b: GraphBuilder, operands: NodeOperands, attrs: NodeAttrs, results: Names, cotangents: Names
) -> Cotangents:
    return times(b, cotangents, b.call("relu_grad", operands["x"]))


BLOCK = Block(
    name="relu",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("x", doc="any shape"),),
    infer=elementwise,
    reference=_reference,
    laws=(Elementwise(), Rowwise(), HomogeneousIn("x", 1)),
    triton=relu,
    vjp=_vjp,
    doc="max(x, 0)",
)
