"""Sum of each row, in the dtype of x, accumulated in fp32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.expansion import widened
from fusedsl.blocks.row_reduction.common import column
from fusedsl.ir import Block, Kind, LinearIn, OperandSpec, Reduction, Rowwise, StatisticOf


@triton.jit
def sum_chunk(x, valid, count):
    """Sum of each row of a piece."""
    return tl.sum(x, axis=1)


@triton.jit
def sum_lift(x):
    """Sum of each element alone."""
    return x


@triton.jit
def sum_merge(count_a, sum_a, count_b, sum_b):
    """Sum of two pieces together."""
    return sum_a + sum_b


@triton.jit
def sum_merge_all(sums, counts):
    """Sum of all pieces; padding holds zeros."""
    return tl.sum(sums, axis=1)


@triton.jit
def sum_finish(total, WIDTH: tl.constexpr):
    """Sum of a row of WIDTH columns."""
    return total


def _reference(x: torch.Tensor) -> torch.Tensor:
    return widened(x).sum(dim=-1, keepdim=True)


REDUCTION = Reduction(
    identity=(0.0,),
    chunk=sum_chunk,
    merge=sum_merge,
    merge_all=sum_merge_all,
    finish=sum_finish,
    lift=sum_lift,
    chunk_reference=lambda x: (widened(x).sum(dim=-1, keepdim=True),),
    merge_reference=lambda sums, counts, width: sums.sum(dim=-1, keepdim=True),
    adds=True,
)

BLOCK = Block(
    name="row_sum",
    kind=Kind.ROW_REDUCTION,
    operands=(OperandSpec("x", doc="[M, K]"),),
    infer=column,
    reference=_reference,
    laws=(Rowwise(), LinearIn("x"), StatisticOf("x", "partial_sum", "merge_sum")),
    reduction=REDUCTION,
    doc="sum of each row, [M, 1]",
)
