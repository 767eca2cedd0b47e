"""Mean of the squares of each row, in fp32: the statistic of RMSNorm."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.expansion import widened
from fusedsl.blocks.row_reduction.common import column_fp32
from fusedsl.ir import Block, Kind, OperandSpec, Reduction, Rowwise, StatisticOf


@triton.jit
def mean_square_chunk(x, valid, count):
    """Sum of squares of each row of a piece."""
    return tl.sum(x * x, axis=1)


@triton.jit
def mean_square_lift(x):
    """Square of each element."""
    return x * x


@triton.jit
def mean_square_merge(count_a, sum_a, count_b, sum_b):
    """Sum of squares of two pieces together."""
    return sum_a + sum_b


@triton.jit
def mean_square_merge_all(sums, counts):
    """Sum of squares of all pieces; padding holds zeros."""
    return tl.sum(sums, axis=1)


@triton.jit
def mean_square_finish(total, WIDTH: tl.constexpr):
    """Mean square of a row of WIDTH columns."""
    return total / WIDTH


def _reference(x: torch.Tensor) -> torch.Tensor:
    return widened(x).square().mean(dim=-1, keepdim=True)


REDUCTION = Reduction(
    identity=(0.0,),
    chunk=mean_square_chunk,
    merge=mean_square_merge,
    merge_all=mean_square_merge_all,
    finish=mean_square_finish,
    lift=mean_square_lift,
    chunk_reference=lambda x: (widened(x).square().sum(dim=-1, keepdim=True),),
    merge_reference=lambda sums, counts, width: sums.sum(dim=-1, keepdim=True) / width,
    adds=True,
)

BLOCK = Block(
    name="row_mean_square",
    kind=Kind.ROW_REDUCTION,
    operands=(OperandSpec("x", doc="[M, K]"),),
    infer=column_fp32,
    reference=_reference,
    laws=(Rowwise(), StatisticOf("x", "partial_mean_square", "merge_mean_square")),
    reduction=REDUCTION,
    flops=2,
    doc="mean of squares of each row, fp32 [M, 1]",
)
