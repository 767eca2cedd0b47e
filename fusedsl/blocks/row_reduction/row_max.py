"""Largest value of each row, in the dtype of x; NaN if the row holds one, as torch.amax."""

# releases of triton type their functions differently
# pyright: reportArgumentType=false, reportOperatorIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.row_reduction.common import column
from fusedsl.ir import Block, Kind, OperandSpec, Reduction, Rowwise, StatisticOf


@triton.jit
def max_with_nan(x):
    """Maximum along axis 1; tl.max drops NaN.

    The bits of a float, with all but the sign flipped where it is set, order as integers as the
    floats do, and a positive NaN lies above inf: one integer reduction.
    """
    bits = tl.where(x == x, x, float("nan")).to(tl.int32, bitcast=True)
    key = tl.max(bits ^ ((bits >> 31) & 0x7FFFFFFF), axis=1)
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def max_chunk(x, valid, count):
    """Maximum of each row of a piece."""
    return max_with_nan(tl.where(valid, x, float("-inf")))


@triton.jit
def max_lift(x):
    """Maximum of each element alone."""
    return x


@triton.jit
def max_merge(count_a, max_a, count_b, max_b):
    """Maximum of two pieces together."""
    return tl.maximum(max_a, max_b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def max_merge_all(maxima, counts):
    """Maximum of all pieces that hold a column."""
    return max_with_nan(tl.where(counts > 0, maxima, float("-inf")))


@triton.jit
def max_finish(largest, WIDTH: tl.constexpr):
    """Maximum of the row."""
    return largest


def _reference(x: torch.Tensor) -> torch.Tensor:
    if x.shape[-1] == 0:  # torch refuses; the largest of nothing is the identity
        return x.new_full((*x.shape[:-1], 1), float("-inf"))
    return x.amax(dim=-1, keepdim=True)


REDUCTION = Reduction(
    identity=(float("-inf"),),
    chunk=max_chunk,
    merge=max_merge,
    merge_all=max_merge_all,
    finish=max_finish,
    lift=max_lift,
    chunk_reference=lambda x: (_reference(x),),
    merge_reference=lambda maxima, counts, width: maxima.amax(dim=-1, keepdim=True),
)

BLOCK = Block(
    name="row_max",
    kind=Kind.ROW_REDUCTION,
    operands=(OperandSpec("x", doc="[M, K]"),),
    infer=column,
    reference=_reference,
    laws=(Rowwise(), StatisticOf("x", "partial_max", "merge_max")),
    reduction=REDUCTION,
    doc="largest value of each row, [M, 1]",
)
