"""x times the normal distribution function: by erf, or by its tanh approximation."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.fast_math import times_sigmoid, times_tail
from fusedsl.blocks.pointwise.common import Cotangents, Names, NodeAttrs, NodeOperands, times
from fusedsl.blocks.typing import elementwise
from fusedsl.ir import Attr, Block, Elementwise, GraphBuilder, Kind, OperandSpec, Rowwise


@triton.jit
def gelu(x, APPROXIMATE: tl.constexpr, FAST: tl.constexpr):
    """x * Phi(x), Phi the normal distribution function, in fp32 registers."""
    if APPROXIMATE == "tanh":
        return times_sigmoid(x, x * (0.7978845608028654 + 0.035677408136300125 * (x * x)), FAST)
    elif FAST:
        # x Phi(x) = max(x, 0) - |x| Q(|x|). Q(30) is 0 and, unlike infinity, 30 Q(30) is too
        positive = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        return positive - times_tail(tl.abs(tl.minimum(x, 30.0)))
    else:
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


def _reference(x: torch.Tensor, *, approximate: str) -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate=approximate)


def _vjp(
    b: GraphBuilder, operands: NodeOperands, attrs: NodeAttrs, results: Names, cotangents: Names
) -> Cotangents:
    slope = b.call("gelu_grad", operands["x"], approximate=attrs["approximate"])
    return times(b, cotangents, slope)


BLOCK = Block(
    name="gelu",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("x", doc="any shape"),),
    infer=elementwise,
    reference=_reference,
    attrs=(
        Attr(
            "approximate",
            "str",
            default="none",
            choices=("none", "tanh"),
            doc="none: the error function, as torch's default; tanh: its approximation",
        ),
    ),
    laws=(Elementwise(), Rowwise()),
    triton=gelu,
    vjp=_vjp,
    flops=12,
    doc="x * Phi(x), Phi the normal distribution function",
)
