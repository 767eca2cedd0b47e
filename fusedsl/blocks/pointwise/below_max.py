"""How far a value of a row lies below the row's largest: the part of a loss that cancels."""

# releases of triton type their functions differently
# pyright: reportArgumentType=false, reportOperatorIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.typing import elementwise
from fusedsl.ir import Block, Elementwise, Kind, OperandSpec, Rowwise


@triton.jit
def below_max(largest, value):
    """largest - value in fp32 registers; 0 where they are the same but for their rounding.

    Both may be sums of the same products in two orders, which differ by some units in the last
    place: within 2^-20 of the largest they are taken as one. Where it is another value that lies
    so near, the loss is at least log 2, and what it is off by no more than 2^-20 of the largest.
    Beside an infinite logit nothing is defined, as in torch.log_softmax.
    """
    gap = largest - value
    gap = tl.where(tl.abs(gap * 1048576.0) < tl.abs(largest), 0.0, gap)
    return tl.where(largest == float("inf"), float("nan"), gap)


def _reference(largest: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.where(largest == torch.inf, torch.nan, largest - value)


BLOCK = Block(
    name="below_max",
    kind=Kind.POINTWISE,
    operands=(
        OperandSpec("largest", doc="[M, 1]: the largest of each row"),
        OperandSpec("value", doc="[M, 1]: one of its values"),
    ),
    infer=elementwise,
    reference=_reference,
    laws=(Elementwise(), Rowwise()),
    triton=below_max,
    internal=True,
    flops=1,
    doc="largest - value, 0 where they differ by rounding alone",
)
