"""r = 1 / sqrt(mean square + eps): the row scale of a norm, from a statistic of the row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.pointwise.common import Cotangents, Names, NodeAttrs, NodeOperands
from fusedsl.blocks.typing import Attrs, Operands, elementwise, not_negative
from fusedsl.ir import (
    Attr,
    Block,
    Elementwise,
    GraphBuilder,
    Kind,
    OperandSpec,
    Positive,
    Rowwise,
    TensorType,
)


def _infer(operands: Operands, attrs: Attrs) -> TensorType:
    not_negative(attrs, "eps")
    return elementwise(operands, attrs)


@triton.jit
def inv_rms(s, EPS: tl.constexpr):
    """1 / sqrt(s + eps) to one unit in the last place: its error is shared by a whole row.

    The hardware's estimate (2 units) and one step of Newton's, r + r (1 - v r^2) / 2: what the
    products' roundings leave of it is 2^-25 of r. Of 0 and inf the estimate is exact, and the step
    is not taken; numbers below the normal ones, 0 to the hardware, are scaled by 2^24. A rounded
    root and a rounded division would branch for each row.
    """
    v = s + EPS
    small = v < 1.1754943508222875e-38
    r = tl.rsqrt(tl.where(small, v * 16777216.0, v))
    r = tl.where(small, r * 4096.0, r)
    error = tl.fma(-(v * r), r, 1.0)
    return tl.where(tl.abs(error) < 0.5, tl.fma(0.5 * r, error, r), r)


def _reference(s: torch.Tensor, *, eps: float) -> torch.Tensor:
    return torch.rsqrt(s + eps)


def _vjp(
    b: GraphBuilder, operands: NodeOperands, attrs: NodeAttrs, results: Names, cotangents: Names
) -> Cotangents:
    (r,) = results
    cube = b.call("mul", r, b.call("mul", r, r))
    return {"s": b.call("mul", cotangents[0], b.call("mul", -0.5, cube))}


BLOCK = Block(
    name="inv_rms",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("s", doc="mean square or variance of each row"),),
    infer=_infer,
    reference=_reference,
    attrs=(Attr("eps", "float", doc="added under the root, not negative"),),
    laws=(Elementwise(), Rowwise(), Positive()),
    triton=inv_rms,
    vjp=_vjp,
    internal=True,
    flops=8,
    doc="1 / sqrt(s + eps)",
)
