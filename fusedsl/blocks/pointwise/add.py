"""Elementwise sum with scalar, row-vector, column-vector and tile operands."""

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
    OperandSpec,
    Rowwise,
    Shifts,
)


@triton.jit
def add(a, b):
    """a + b, in fp32 registers."""
    return a + b


def _vjp(
    b: GraphBuilder, operands: NodeOperands, attrs: NodeAttrs, results: Names, cotangents: Names
) -> Cotangents:
    (dy,) = cotangents
    return of_tensors(operands, {"a": lambda: dy, "b": lambda: dy})


BLOCK = Block(
    name="add",
    kind=Kind.POINTWISE,
    operands=(
        OperandSpec("a", scalar=True, doc="tile, row or column vector, or number"),
        OperandSpec("b", scalar=True, doc="tile, row or column vector, or number"),
    ),
    infer=elementwise,
    reference=lambda a, b: a + b,
    laws=(
        Elementwise(),
        Rowwise(),
        Shifts("a", "b"),
        Shifts("b", "a"),
    ),
    triton=add,
    infix="+",
    vjp=_vjp,
    doc="a + b, with broadcasting",
)
