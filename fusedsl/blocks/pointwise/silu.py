"""x times its sigmoid (swish): the gate of SwiGLU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.fast_math import times_sigmoid
from fusedsl.blocks.pointwise.common import Cotangents, Names, NodeAttrs, NodeOperands, times
from fusedsl.blocks.typing import elementwise
from fusedsl.ir import Block, Elementwise, GraphBuilder, Kind, OperandSpec, Rowwise


@triton.jit
def silu(x, FAST: tl.constexpr):
    """x * sigmoid(x), in fp32 registers."""
    return times_sigmoid(x, 0.5 * x, FAST)


def _reference(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x)


def _vjp(
    b: GraphBuilder, operands: NodeOperands, attrs: NodeAttrs, results: Names, cotangents: Names
) -> Cotangents:
    return times(b, cotangents, b.call("silu_grad", operands["x"]))


BLOCK = Block(
    name="silu",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("x", doc="any shape"),),
    infer=elementwise,
    reference=_reference,
    laws=(Elementwise(), Rowwise()),
    triton=silu,
    vjp=_vjp,
    flops=8,
    doc="x * sigmoid(x)",
)
