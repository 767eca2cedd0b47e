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
    """1 / sqrt(s + eps), each step rounded to nearest: its error is shared by a whole row.

    Off by at most 1/4 (the sum, halved by the root) + 1/2 + 1/2 units in the last place.
    """
    return tl.div_rn(1.0, tl.sqrt_rn(s + EPS))


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
