"""Derivative of relu: 1 above zero, else 0, as torch at zero."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.typing import elementwise
from fusedsl.ir import Block, Elementwise, Kind, OperandSpec, Rowwise


@triton.jit
def relu_grad(x):
    """1 where x > 0, else 0, in fp32 registers."""
    return tl.where(x <= 0.0, 0.0, 1.0)


def _reference(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x <= 0, 0.0, 1.0).to(x.dtype)


BLOCK = Block(
    name="relu_grad",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("x", doc="any shape"),),
    infer=elementwise,
    reference=_reference,
    laws=(Elementwise(), Rowwise()),
    triton=relu_grad,
    internal=True,
    doc="1 where x > 0, else 0",
)
