"""cap * tanh(x / cap): logits held inside (-cap, cap) (Gemma 2)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.fast_math import fast_tanh
from fusedsl.blocks.pointwise.common import Cotangents, Names, NodeAttrs, NodeOperands, times
from fusedsl.blocks.typing import elementwise
from fusedsl.ir import (
    Attr,
    Block,
    Elementwise,
    FactorsOut,
    GraphBuilder,
    Kind,
    OperandSpec,
    Rowwise,
)


@triton.jit
def softcap(x, CAP: tl.constexpr, FAST: tl.constexpr):
    """cap * tanh(x / cap), in fp32 registers."""
    return CAP * fast_tanh(x * (1.0 / CAP), FAST)


@triton.jit
def softcap_share(x, scale, CAP: tl.constexpr, FAST: tl.constexpr):
    """softcap(scale * x) / cap, in fp32 registers; scale is a number or a column."""
    return fast_tanh(x * (scale * (1.0 / CAP)), FAST)


def _reference(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    return cap * torch.tanh(x / cap)


def _vjp(
    b: GraphBuilder, operands: NodeOperands, attrs: NodeAttrs, results: Names, cotangents: Names
) -> Cotangents:
    t = b.call("mul", results[0], 1.0 / attrs["cap"])
    return times(b, cotangents, b.call("sub", 1.0, b.call("mul", t, t)))


BLOCK = Block(
    name="softcap",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("x", doc="any shape"),),
    infer=elementwise,
    reference=_reference,
    attrs=(Attr("cap", "float", minimum=0.0, doc="bound of the result"),),
    laws=(
        Elementwise(),
        Rowwise(),
        FactorsOut("x", "cap", softcap_share, lambda x, scale, cap: torch.tanh(scale * x / cap)),
    ),
    triton=softcap,
    vjp=_vjp,
    flops=14,
    doc="cap * tanh(x / cap)",
)
