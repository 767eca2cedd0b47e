"""Derivative of gelu, in both of its forms."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.fast_math import fast_exp, fast_sigmoid, sigmoid_slope
from fusedsl.blocks.typing import elementwise
from fusedsl.ir import Attr, Block, Elementwise, Kind, OperandSpec, Rowwise


@triton.jit
def gelu_grad(x, APPROXIMATE: tl.constexpr, FAST: tl.constexpr):
    """Phi(x) + x * phi(x), or its tanh approximation, in fp32 registers."""
    if APPROXIMATE == "tanh":
        u = 1.5957691216057308 * (x + 0.044715 * x * x * x)
        # beyond 20 the sigmoid is flat, and x^3 may overflow
        near = tl.minimum(tl.maximum(x, -20.0), 20.0)
        slope = 1.5957691216057308 * (near + 0.134145 * near * near * near)
        return fast_sigmoid(u, FAST) + sigmoid_slope(u, FAST) * slope
    else:
        density = 0.3989422804014327 * fast_exp(-0.5 * x * x, FAST)
        return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * density


def _reference(x: torch.Tensor, *, approximate: str) -> torch.Tensor:
    if approximate == "tanh":
        s = torch.sigmoid(1.5957691216057308 * (x + 0.044715 * x**3))
        near = x.clamp(-20, 20)
        return s + s * (1 - s) * 1.5957691216057308 * (near + 0.134145 * near**3)
    density = 0.3989422804014327 * torch.exp(-0.5 * x * x)
    return 0.5 * (1 + torch.erf(x * 0.7071067811865476)) + x * density


BLOCK = Block(
    name="gelu_grad",
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
    triton=gelu_grad,
    internal=True,
    flops=16,
    doc="Phi(x) + x * phi(x), or its tanh approximation",
)
