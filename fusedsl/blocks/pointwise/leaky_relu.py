"""x above zero, slope * x below."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.pointwise.common import Cotangents, Names, NodeAttrs, NodeOperands, times
from fusedsl.blocks.typing import elementwise
from fusedsl.ir import (
    Attr,
    Block,
    Elementwise,
    GraphBuilder,
    HomogeneousIn,
    Kind,
    OperandSpec,
    Rowwise,
)


@triton.jit
def leaky_relu(x, SLOPE: tl.constexpr):
    """x where x > 0, else slope * x, in fp32 registers."""
    return tl.where(x > 0.0, x, x * SLOPE)


def _reference(x: torch.Tensor, *, slope: float) -> torch.Tensor:
    return torch.nn.functional.leaky_relu(x, slope)


def _vjp(
    b: GraphBuilder, operands: NodeOperands, attrs: NodeAttrs, results: Names, cotangents: Names
) -> Cotangents:
    slope = b.call("leaky_relu_grad", operands["x"], slope=attrs["slope"])
    return times(b, cotangents, slope)


BLOCK = Block(
    name="leaky_relu",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("x", doc="any shape"),),
    infer=elementwise,
    reference=_reference,
    attrs=(Attr("slope", "float", default=0.01, doc="factor of negative values"),),
    laws=(Elementwise(), Rowwise(), HomogeneousIn("x", 1)),
    triton=leaky_relu,
    vjp=_vjp,
    flops=2,
    doc="x where x > 0, else slope * x",
)
