"""Elementwise product with scalar, row-vector, column-vector and tile operands."""

from __future__ import annotations

import triton
import triton.language as tl  # noqa: F401 (the interpreter looks for it beside a jit function)

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
    Scales,
)


@triton.jit
def mul(a, b):
    """a * b, in fp32 registers."""
    return a * b


def _vjp(
    b: GraphBuilder, operands: NodeOperands, attrs: NodeAttrs, results: Names, cotangents: Names
) -> Cotangents:
    (dy,) = cotangents
    x, y = operands["a"], operands["b"]
    return of_tensors(
        operands, {"a": lambda: b.call("mul", dy, y), "b": lambda: b.call("mul", dy, x)}
    )


BLOCK = Block(
    name="mul",
    kind=Kind.POINTWISE,
    operands=(
        OperandSpec("a", scalar=True, doc="tile, row or column vector, or number"),
        OperandSpec("b", scalar=True, doc="tile, row or column vector, or number"),
    ),
    infer=elementwise,
    reference=lambda a, b: a * b,
    laws=(
        Elementwise(),
        Rowwise(),
        LinearIn("a"),
        LinearIn("b"),
        Scales("a", "b"),
        Scales("b", "a"),
    ),
    triton=mul,
    infix="*",
    vjp=_vjp,
    doc="a * b, with broadcasting",
)
