"""Elementwise negation."""

from __future__ import annotations

import torch
import triton
import triton.language as tl  # noqa: F401 (the interpreter looks for it beside a jit function)

from fusedsl.blocks.pointwise.common import Cotangents, Names, NodeAttrs, NodeOperands
from fusedsl.blocks.typing import elementwise
from fusedsl.ir import (
    Block,
    Elementwise,
    GraphBuilder,
    HomogeneousIn,
    Kind,
    LinearIn,
    OperandSpec,
    Rowwise,
)


@triton.jit
def neg(x):
    """-x, in fp32 registers."""
    return -x


def _reference(x: torch.Tensor) -> torch.Tensor:
    return -x


def _vjp(
    b: GraphBuilder, operands: NodeOperands, attrs: NodeAttrs, results: Names, cotangents: Names
) -> Cotangents:
    return {"x": b.call("neg", cotangents[0])}


BLOCK = Block(
    name="neg",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("x", doc="any shape"),),
    infer=elementwise,
    reference=_reference,
    laws=(Elementwise(), Rowwise(), LinearIn("x"), HomogeneousIn("x", 1)),
    triton=neg,
    prefix="-",
    vjp=_vjp,
    doc="-x",
)
