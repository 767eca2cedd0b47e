"""Exponential; inf above about 88.7, as torch in fp32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.fast_math import fast_exp
from fusedsl.blocks.pointwise.common import Cotangents, Names, NodeAttrs, NodeOperands, times
from fusedsl.blocks.typing import elementwise
from fusedsl.ir import Block, Elementwise, GraphBuilder, Kind, OperandSpec, Positive, Rowwise


@triton.jit
def exp(x, FAST: tl.constexpr):
    """exp(x), in fp32 registers."""
    return fast_exp(x, FAST)


def _reference(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x)


def _vjp(
    b: GraphBuilder, operands: NodeOperands, attrs: NodeAttrs, results: Names, cotangents: Names
) -> Cotangents:
    return times(b, cotangents, results[0])


BLOCK = Block(
    name="exp",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("x", doc="any shape"),),
    infer=elementwise,
    reference=_reference,
    laws=(Elementwise(), Rowwise(), Positive()),
    triton=exp,
    vjp=_vjp,
    flops=6,
    doc="exp(x)",
)
