"""Elementwise quotient with scalar, row-vector, column-vector and tile operands."""

from __future__ import annotations

import triton
import triton.language as tl

from fusedsl.blocks.pointwise.common import (
    Cotangents,
    Names,
    NodeAttrs,
    NodeOperands,
    of_tensors,
)
from fusedsl.blocks.typing import elementwise
from fusedsl.ir import (
    Block,
    Elementwise,
    GraphBuilder,
    Kind,
    LinearIn,
    OperandSpec,
    Rowwise,
)


@triton.jit
def div(a, b):
    """a / b, in fp32 registers."""
    return tl.div_rn(a, b)


def _vjp(
    b: GraphBuilder, operands: NodeOperands, attrs: NodeAttrs, results: Names, cotangents: Names
) -> Cotangents:
    (dy,) = cotangents
    (y,) = results
    divisor = operands["b"]
    return of_tensors(
        operands,
        {
            "a": lambda: b.call("div", dy, divisor),
            # d(a / b) / db = -y / b
            "b": lambda: b.call("neg", b.call("div", b.call("mul", dy, y), divisor)),
        },
    )


BLOCK = Block(
    name="div",
    kind=Kind.POINTWISE,
    operands=(
        OperandSpec("a", scalar=True, doc="tile, row or column vector, or number"),
        OperandSpec("b", scalar=True, doc="the divisor: tile, row or column vector, or number"),
    ),
    infer=elementwise,
    reference=lambda a, b: a / b,
    laws=(
        Elementwise(),
        Rowwise(),
        LinearIn("a"),
    ),
    triton=div,
    infix="/",
    vjp=_vjp,
    doc="a / b, with broadcasting",
)
