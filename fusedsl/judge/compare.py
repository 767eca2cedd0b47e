"""Values against fp64, at a bar made from eager's own error.

Three measures, each relative: the Frobenius norm of the error over all values, the worst row
(a row lies along the last axis), and the worst value over the root mean square of its row. A
program's may be a few times eager's, no more: a lower precision is 8 to 8192 times as far off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fusedsl.judge.draw import poisoned
from fusedsl.judge.verdict import Code

#: Error allowed over eager's. Sums in fp32 in another order may be several times as far off as a
#: blocked sum; the next lower precision is 8 times as far off in 16 bits and hundreds in fp32.
RATIO = {torch.float32: 8.0, torch.float16: 3.0, torch.bfloat16: 3.0}

#: A correctly rounded result is about 0.2 spacings off; of few values, eager's error is luck.
ROUNDING, LUCK = 0.25, 4.0

#: Relative error above which the values are wrong, rather than imprecise.
IMPRECISE = 0.05


@dataclass(frozen=True)
class Distance:
    """How far values are from fp64; see the module."""

    total: float
    row: float
    peak: float

    def worst(self, other: Distance) -> Distance:
        """The larger of each measure."""
        return Distance(
            max(self.total, other.total), max(self.row, other.row), max(self.peak, other.peak)
        )


@dataclass(frozen=True)
class Finding:
    """What is wrong with an output."""

    code: Code
    message: str


def distance(got: Tensor, exact: Tensor) -> Distance:
    """Over the values that are finite in both."""
    if not got.numel():
        return Distance(0.0, 0.0, 0.0)
    both = exact.isfinite() & got.isfinite()
    want = torch.where(both, exact, 0.0).reshape(-1, exact.shape[-1] if exact.dim() else 1)
    error = torch.where(both, got.double(), 0.0).reshape(want.shape) - want
    count = max(1, int(want.shape[1]))
    norms, errors = want.norm(dim=1), error.norm(dim=1)
    scale = float(want.norm()) or torch.finfo(torch.float64).tiny
    # A row of zeros is held to the spacing of a typical row.
    typical = scale / max(1, int((norms > 0).sum())) ** 0.5 * torch.finfo(got.dtype).eps
    norms = norms.clamp(min=max(typical, torch.finfo(torch.float64).tiny))
    peaks = error.abs().amax(dim=1) / (norms / count**0.5)
    return Distance(float(error.norm()) / scale, float((errors / norms).max()), float(peaks.max()))


def bar(eager: Distance, dtype: torch.dtype, shape: Sequence[int]) -> Distance:
    """The largest distance that passes beside eager's."""
    ratio, eps = RATIO.get(dtype, 3.0), torch.finfo(dtype).eps
    count = max(1, torch.Size(shape).numel())
    columns = max(1, shape[-1]) if len(shape) else 1
    total = eps * max(ROUNDING, LUCK / count**0.5)
    row = eps * max(ROUNDING, LUCK / columns**0.5)
    return Distance(
        ratio * eager.total + total, 1.5 * ratio * eager.row + row, 1.5 * ratio * eager.peak + eps
    )


def check(
    got: Tensor, exact: Tensor, eager: Tensor, allowed: Distance, case: str
) -> Finding | None:
    """The first thing that is wrong with an output, or None."""
    stale = poisoned(got) & exact.isfinite()
    if bool(stale.any()):
        return Finding(Code.STALE_OUTPUT, f"{int(stale.sum())} values are not written")
    found = _not_finite(got, exact, eager, case)
    if found is not None:
        return found
    far = distance(got, exact)
    for what, mine, most in (
        ("relative error", far.total, allowed.total),
        ("relative error of the worst row", far.row, allowed.row),
        ("error of the worst value over its row's rms", far.peak, allowed.peak),
    ):
        if mine > most:
            code = Code.LOW_PRECISION if far.total < IMPRECISE else Code.WRONG_VALUES
            return Finding(code, f"{what} {mine:.2e}, at most {most:.2e} beside eager's own")
    return None


def _not_finite(got: Tensor, exact: Tensor, eager: Tensor, case: str) -> Finding | None:
    """Infinite or NaN where the reference is not, or the other way round.

    Where fp64 (rounded to the dtype) and eager differ in that, either is right.
    """
    strict = case != "inf_rows"
    mine = _kind(got, strict)
    ways = [_kind(exact.to(got.dtype), strict), _kind(eager, strict)]
    bad = (mine != ways[0]) & (mine != ways[1])
    if not bool(bad.any()):
        return None
    count = int(bad.sum())
    if case in ("nan_rows", "inf_rows"):
        return Finding(
            Code.NAN_NOT_PROPAGATED,
            f"{count} values are not finite, or finite, where the reference is the other",
        )
    return Finding(Code.NOT_FINITE, f"{count} values are not finite where the reference is")


def _kind(tensor: Tensor, strict: bool) -> Tensor:
    """0 finite, 1 infinite, 2 NaN; 1 for both of the latter unless `strict`."""
    kinds = (~tensor.isfinite()).to(torch.int8)
    return kinds + tensor.isnan().to(torch.int8) if strict else kinds
