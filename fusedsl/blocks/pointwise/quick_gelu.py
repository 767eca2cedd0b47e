"""x * sigmoid(1.702 x): the GELU approximation of CLIP and of GPT-1's code (Hendrycks and Gimpel,
2016, section 2)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.fast_math import times_sigmoid
from fusedsl.blocks.pointwise.common import Cotangents, Names, NodeAttrs, NodeOperands, times
from fusedsl.blocks.typing import elementwise
from fusedsl.ir import Block, Elementwise, GraphBuilder, Kind, OperandSpec, Rowwise

SLOPE = 1.702


@triton.jit
def quick_gelu(x, FAST: tl.constexpr):
    """x * sigmoid(1.702 x), in fp32 registers."""
    return times_sigmoid(x, 0.851 * x, FAST)


def _reference(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(SLOPE * x)


def _vjp(
    b: GraphBuilder, operands: NodeOperands, attrs: NodeAttrs, results: Names, cotangents: Names
) -> Cotangents:
    # s + 1.702 x s (1 - s) = s + 1.702 y (1 - s)
    s = b.call("sigmoid", b.call("mul", operands["x"], SLOPE))
    bend = b.call("mul", b.call("mul", results[0], SLOPE), b.call("sub", 1.0, s))
    return times(b, cotangents, b.call("add", s, bend))


BLOCK = Block(
    name="quick_gelu",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("x", doc="any shape"),),
    infer=elementwise,
    reference=_reference,
    laws=(Elementwise(), Rowwise()),
    triton=quick_gelu,
    vjp=_vjp,
    on_card=False,
    flops=10,
    doc="x * sigmoid(1.702 * x)",
)
