"""Mean and (biased) variance of each row, in fp32: the statistics of LayerNorm.

A piece is (mean, M2), M2 = sum of (x - mean)^2, taken in two passes over registers. Pieces merge
by Chan, Golub and LeVeque (1979): M2 = M2_a + M2_b + delta^2 n_a n_b / n. E[x^2] - E[x]^2, which
cancels where the mean is large, is never formed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.expansion import widened
from fusedsl.blocks.row_reduction.common import column_fp32
from fusedsl.blocks.typing import Attrs, Operands
from fusedsl.ir import Block, Kind, OperandSpec, Reduction, Rowwise, StatisticOf, TensorType


@triton.jit
def moments_chunk(x, valid, count):
    """(mean, M2) of each row of a piece; the first mean's own rounding is taken out of both."""
    size = tl.maximum(count, 1).to(tl.float32)
    rough = tl.sum(x, axis=1) / size
    centred = tl.where(valid, x - rough[:, None], 0.0)
    residue = tl.sum(centred, axis=1)
    m2 = tl.sum(centred * centred, axis=1) - residue * (residue / size)
    return rough + residue / size, tl.maximum(m2, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def moments_lift(x):
    """(mean, M2) of each element alone."""
    return x, tl.zeros_like(x)


@triton.jit
def moments_merge(count_a, mean_a, m2_a, count_b, mean_b, m2_b):
    """(mean, M2) of two pieces together."""
    share = count_b / tl.maximum(count_a + count_b, 1).to(tl.float32)
    delta = mean_b - mean_a
    return mean_a + delta * share, m2_a + m2_b + delta * delta * (count_a * share)


@triton.jit
def moments_merge_all(means, m2s, counts):
    """(mean, M2) of all pieces; those that hold no column do not count."""
    held = counts > 0
    total = tl.maximum(tl.sum(counts, axis=1), 1.0)
    rough = tl.sum(tl.where(held, means, 0.0) * counts, axis=1) / total
    apart = tl.where(held, means - rough[:, None], 0.0)
    residue = tl.sum(apart * counts, axis=1)
    m2 = tl.sum(tl.where(held, m2s, 0.0) + apart * apart * counts, axis=1)
    m2 -= residue * (residue / total)
    return rough + residue / total, tl.maximum(m2, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def moments_centre(sums, count):
    """A rough mean of each row, from the sums of its lanes."""
    return tl.sum(sums, axis=1) / count


@triton.jit
def moments_apart(x, valid, centre):
    """Distance from the rough mean and its square, for each element."""
    centred = tl.where(valid, x - centre, 0.0)
    return centred, centred * centred


@triton.jit
def moments_about(centre, residues, squares, count):
    """(mean, M2); what the rough mean is off by is taken out of both.

    The mean of a share f of the row will do: the variance is at least f (1 - f) (m - m')^2, with m
    and m' the means of that share and of the rest, and the rough mean m is off by
    (1 - f) (m - m'), so what is subtracted is at most (1 - f) / f times what is left.

    Of 32 columns of 262144 that is 2^13, reached where these columns hold all that lies apart from
    the rest. The worst found in fp32, where they are 1000 and all others 3: 2^-8 of the variance,
    so 2^-9 of what is divided by its root, a rounding to bf16. One outlier among them costs 2^-12
    of the variance, and far from zero or with outliers elsewhere it is right to fp32.
    """
    residue = tl.sum(residues, axis=1)
    m2 = tl.sum(squares, axis=1) - residue * (residue / count)
    return centre + residue / count, tl.maximum(m2, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def moments_exact(centre, residues, squares, count):
    """(mean, M2) where the mean is right to its own rounding: nothing is left of it to take out.

    So it is of up to 2^(23 - p) values of p significant bits (4096 of fp16, 32768 of bf16): if all
    lie within a factor of two, sums of them are exact in fp32; if not, the variance is at least
    mean^2 / 4n, far above the square of what the sum's rounding makes of the mean.
    """
    return centre, tl.sum(squares, axis=1)


@triton.jit
def moments_finish(mean, m2, WIDTH: tl.constexpr):
    """(mean, variance) of a row of WIDTH columns."""
    return mean, m2 / WIDTH


def _infer(operands: Operands, attrs: Attrs) -> tuple[TensorType, TensorType]:
    statistic = column_fp32(operands, attrs)
    return statistic, statistic


def _reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean = widened(x).mean(dim=-1, keepdim=True)
    return mean, (widened(x) - mean).square().mean(dim=-1, keepdim=True)


def _chunk_reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, var = _reference(x)
    return mean, var * x.shape[-1]


def _merge_reference(
    means: torch.Tensor, m2s: torch.Tensor, counts: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    mean = (means * counts).sum(dim=-1, keepdim=True) / width
    m2 = (m2s + (means - mean).square() * counts).sum(dim=-1, keepdim=True)
    return mean, m2 / width


REDUCTION = Reduction(
    identity=(0.0, 0.0),
    chunk=moments_chunk,
    merge=moments_merge,
    merge_all=moments_merge_all,
    finish=moments_finish,
    lift=moments_lift,
    chunk_reference=_chunk_reference,
    merge_reference=_merge_reference,
    about=(moments_centre, moments_apart, moments_about),
    about_exact=moments_exact,
)

BLOCK = Block(
    name="row_moments",
    kind=Kind.ROW_REDUCTION,
    operands=(OperandSpec("x", doc="[M, K]"),),
    infer=_infer,
    reference=_reference,
    laws=(Rowwise(), StatisticOf("x", "partial_moments", "merge_moments")),
    reduction=REDUCTION,
    results=("mean", "var"),
    flops=6,
    doc="mean and biased variance of each row, fp32 [M, 1] each",
)
