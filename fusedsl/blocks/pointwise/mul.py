"""Elementwise product with scalar, row-vector, column-vector and tile operands."""

from __future__ import annotations

import triton

from fusedsl.blocks.typing import elementwise
from fusedsl.ir import Block, Elementwise, Kind, LinearIn, OperandSpec, Rowwise, Scales


@triton.jit
def mul(a, b):
    return a * b


def _vjp(b, operands, attrs, results, cotangents):
    (dy,) = cotangents
    x, y = operands["a"], operands["b"]
    grads = {"a": b.call("mul", dy, y), "b": b.call("mul", dy, x)}
    return {name: g for name, g in grads.items() if isinstance(operands[name], str)}


BLOCK = Block(
    name="mul",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("a", scalar=True), OperandSpec("b", scalar=True)),
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
