"""r = 1 / sqrt(mean square + eps): the row scale of a norm, from a statistic of the row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.typing import elementwise
from fusedsl.ir import Attr, Block, Elementwise, Kind, OperandSpec, Positive, Rowwise


@triton.jit
def inv_rms(s, EPS: tl.constexpr):
    return 1.0 / tl.sqrt_rn(s + EPS)


def _reference(s: torch.Tensor, *, eps: float) -> torch.Tensor:
    return torch.rsqrt(s + eps)


BLOCK = Block(
    name="inv_rms",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("s", doc="mean square or variance of each row"),),
    infer=elementwise,
    reference=_reference,
    attrs=(Attr("eps", "float", doc="added under the root"),),
    laws=(Elementwise(), Rowwise(), Positive()),
    triton=inv_rms,
    internal=True,
    flops=8,
    doc="1 / sqrt(s + eps)",
)
