"""The value of each row in the column that an index names; NaN where there is no such column.

Exactly one piece of a row holds the column, so no pieces are merged: that one gives the value. An
index outside of [0, K) is no error that a kernel could report without a synchronisation, so it
gives NaN, never another column's value.
"""

# releases of triton type their functions differently
# pyright: reportArgumentType=false, reportOperatorIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.row_reduction.common import column
from fusedsl.blocks.typing import Attrs, Operands, index_of
from fusedsl.ir import Block, Kind, OperandSpec, Picks, Reduction, Rowwise, TensorType


@triton.jit
def pick_inside(index, WIDTH: tl.constexpr):
    """The index as i32, and -1 where it names no column of the row; any integer comes in."""
    return tl.where((index >= 0) & (index < WIDTH), index, -1).to(tl.int32)


@triton.jit
def pick_chunk(x, valid, count, cols, index):
    """The value of the column, 0 where another piece holds it."""
    at = tl.where((index >= 0) & (index < 2147483647), index, -1).to(tl.int32)
    return tl.sum(tl.where(cols == at, x, 0.0), axis=1)


@triton.jit
def pick_lift(x, cols, index):
    """Each element that is in the column, 0 where it is another one's."""
    at = tl.where((index >= 0) & (index < 2147483647), index, -1).to(tl.int32)
    return tl.where(cols == at, x, 0.0)


@triton.jit
def pick_merge(count_a, value_a, count_b, value_b):
    """The value, from two pieces of which one holds it."""
    return value_a + value_b


@triton.jit
def pick_merge_all(values, counts):
    """The value, from pieces of which one holds it."""
    return tl.sum(tl.where(counts > 0, values, 0.0), axis=1)


@triton.jit
def pick_finish(value, index, WIDTH: tl.constexpr):
    """The value; NaN where the index names no column."""
    at = tl.reshape(pick_inside(index, WIDTH), value.shape)
    return tl.where(at < 0, float("nan"), value)


@triton.jit
def pick_owner(index, start, stop, WIDTH: tl.constexpr):
    """Whether columns [start, stop) hold the one of this row; the first piece answers for rows
    whose index names none."""
    at = pick_inside(index, WIDTH)
    return ((at >= start) & (at < stop)) | ((at < 0) & (start == 0))


def _infer(operands: Operands, attrs: Attrs) -> TensorType:
    picked = column(operands, attrs)
    index_of(operands, "index", picked.rows, "x")
    return picked


def picked(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """[M, 1]: x[i, index[i]], NaN where the index is out of range."""
    index = index.reshape(-1, 1).long()
    inside = (index >= 0) & (index < x.shape[-1])
    if x.shape[-1] == 0:
        return x.new_full(index.shape, torch.nan)
    return torch.where(inside, x.gather(-1, torch.where(inside, index, 0)), torch.nan)


REDUCTION = Reduction(
    identity=(0.0,),
    chunk=pick_chunk,
    merge=pick_merge,
    merge_all=pick_merge_all,
    finish=pick_finish,
    lift=pick_lift,
    chunk_reference=picked,  # index relative to the piece; NaN where another one holds it
    merge_reference=lambda values, counts, width: values.nansum(dim=-1, keepdim=True),
    owner=pick_owner,
)

BLOCK = Block(
    name="pick",
    kind=Kind.ROW_REDUCTION,
    operands=(
        OperandSpec("x", doc="[M, K]"),
        OperandSpec("index", index=True, doc="i32[M] or i64[M]: a column of each row"),
    ),
    infer=_infer,
    reference=picked,
    laws=(Rowwise(), Picks("x", "index")),
    reduction=REDUCTION,
    on_card=False,
    flops=2,
    doc="each row's value in the column of its index, NaN where there is none",
)
