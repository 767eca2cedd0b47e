"""The two parts of a row's log-sum-exp, in fp32: its largest value, and log(sum(exp(x - max))).

Their sum is the log-sum-exp. They stay apart because what is taken off it later (a logit, in a
cross-entropy) is taken off the maximum first: both are large where the difference is not.

A piece is (maximum, sum of exp(x - maximum)); pieces are rescaled to the larger maximum as they are
merged, so nothing overflows. Infinite maxima are not subtracted: a row of -inf gives (-inf, -inf),
a row with inf gives (inf, inf), as torch.logsumexp; a row with NaN gives NaN in both.
"""

# releases of triton type their functions differently
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAssignmentType=false
from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.expansion import widened
from fusedsl.blocks.row_reduction.common import column_fp32
from fusedsl.blocks.typing import Attrs, Operands
from fusedsl.ir import Block, Kind, OperandSpec, Reduction, Rowwise, StatisticOf, TensorType


@triton.jit
def finite_or_zero(x):
    """x, and 0 where it is infinite: what exponents are taken relative to."""
    return tl.where(tl.abs(x) == float("inf"), 0.0, x)


@triton.jit
def in_chains(x):
    """[rows, columns] as [rows, 4, columns / 4]: a reduction of the middle axis first is several
    short chains of instructions in each thread, where one of all columns is a long one."""
    CHAINS: tl.constexpr = 4 if x.shape[1] >= 64 else 1
    return tl.reshape(x, (x.shape[0], CHAINS, x.shape[1] // CHAINS))


@triton.jit
def max_of_rows(x):
    """The largest value of each row."""
    return tl.max(tl.max(in_chains(x), axis=1), axis=1)


@triton.jit
def sum_of_rows(x):
    """The sum of each row."""
    return tl.sum(tl.sum(in_chains(x), axis=1), axis=1)


@triton.jit
def as_vector(column):
    """[rows, 1] as [rows]."""
    return tl.reshape(column, (column.shape[0],))


@triton.jit
def log_sum_chunk(x, valid, count, scale=1.0, FAST: tl.constexpr = False):
    """(maximum, sum of exp(z - maximum)) of z = scale * x in each row of a piece; scale is a
    positive number, or a column of them.

    The fast form is one multiplication and one special function for each element; its error in
    the sum is about abs(maximum) units in the last place.
    """
    if FAST:
        live = tl.where(valid, x, float("-inf"))
        peak = max_of_rows(live)[:, None]
        steep = scale * 1.4426950408889634
        terms = tl.exp2(x * steep - finite_or_zero(peak * steep))
        terms = tl.where(valid, terms, 0.0)  # steep may be 0
        return as_vector(peak * scale), sum_of_rows(terms)
    else:
        live = tl.where(valid, x * scale, float("-inf"))
        largest = tl.max(live, axis=1)
        terms = tl.exp(live - finite_or_zero(largest)[:, None])
        return largest, tl.sum(terms, axis=1)


@triton.jit
def log_sum_lift(x):
    """(maximum, sum) of each element alone: 1, and what it is itself where it is not finite."""
    return x, tl.where(x == finite_or_zero(x), 1.0, tl.where(x < 0, 0.0, x))


@triton.jit
def log_sum_merge(count_a, max_a, sum_a, count_b, max_b, sum_b):
    """(maximum, sum) of two pieces together; the one with the smaller maximum is scaled down."""
    largest = tl.maximum(max_a, max_b)
    share = tl.where(max_a == max_b, 1.0, tl.exp(-tl.abs(max_a - max_b)))
    scaled_a = sum_a * tl.where(max_a == largest, 1.0, share)
    return largest, scaled_a + sum_b * tl.where(max_b == largest, 1.0, share)


@triton.jit
def log_sum_merge_all(maxima, sums, counts):
    """(maximum, sum) of all pieces that hold a column."""
    maxima = tl.where(counts > 0, maxima, float("-inf"))
    largest = tl.max(maxima, axis=1)
    zero = finite_or_zero(largest)[:, None]
    shares = tl.where(maxima == largest[:, None], 1.0, tl.exp(maxima - zero))
    return largest, tl.sum(tl.where(counts > 0, sums, 0.0) * shares, axis=1)


@triton.jit
def log_sum_finish(largest, total, WIDTH: tl.constexpr):
    """(maximum, log of the sum) of the row; the sum alone knows of NaN in it."""
    return tl.where(total == total, largest, total), tl.log(total)


def _infer(operands: Operands, attrs: Attrs) -> tuple[TensorType, TensorType]:
    part = column_fp32(operands, attrs)
    return part, part


def _chunk_reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = widened(x)
    largest = x.amax(dim=-1, keepdim=True) if x.shape[-1] else x.new_full((len(x), 1), -torch.inf)
    zero = torch.where(largest.isinf(), 0.0, largest)
    return largest, (x - zero).exp().sum(dim=-1, keepdim=True)


def _reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    largest, total = _chunk_reference(x)
    return largest, total.log()


def _merge_reference(
    maxima: torch.Tensor, sums: torch.Tensor, counts: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    largest = maxima.amax(dim=-1, keepdim=True)
    zero = torch.where(largest.isinf(), 0.0, largest)
    shares = torch.where(maxima == largest, 1.0, (maxima - zero).exp())
    return largest, (sums * shares).sum(dim=-1, keepdim=True).log()


REDUCTION = Reduction(
    identity=(float("-inf"), 0.0),
    chunk=log_sum_chunk,
    merge=log_sum_merge,
    merge_all=log_sum_merge_all,
    finish=log_sum_finish,
    lift=log_sum_lift,
    chunk_reference=_chunk_reference,
    merge_reference=_merge_reference,
)

BLOCK = Block(
    name="row_log_sum",
    kind=Kind.ROW_REDUCTION,
    operands=(OperandSpec("x", doc="[M, K]"),),
    infer=_infer,
    reference=_reference,
    laws=(Rowwise(), StatisticOf("x", "partial_log_sum", "merge_log_sum")),
    reduction=REDUCTION,
    results=("max", "log_sum"),
    on_card=False,
    flops=8,
    doc="largest value of each row and log(sum(exp(x - max))), fp32 [M, 1] each",
)
