"""Laws a block may declare about itself. Nothing holds by default.

A rewrite rule asks for a law, never for a name, so a block that declares nothing is never moved.
Every declared law is checked on random fp64 data for the block that claims it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class LinearIn:
    """f(a·x + b·z) = a·f(x) + b·f(z) in this operand, the others held fixed."""

    operand: str


@dataclass(frozen=True)
class HomogeneousIn:
    """f(c ⊙ x) = c^degree ⊙ f(x) for every row scale c > 0 in this operand."""

    operand: str
    degree: int


@dataclass(frozen=True)
class Rowwise:
    """Row i of the result depends on row i of tile operands only, and on weights."""


@dataclass(frozen=True)
class Elementwise:
    """Element (i, j) of the result depends on element (i, j) of the broadcast operands only."""


@dataclass(frozen=True)
class Positive:
    """Every element of the result is > 0 (for finite operands)."""


@dataclass(frozen=True)
class Scales:
    """f = operand ⊙ factor: where `factor` is a column vector this is a row scale."""

    operand: str
    factor: str


@dataclass(frozen=True)
class Shifts:
    """f = operand + sign · shift, elementwise."""

    operand: str
    shift: str
    sign: int = 1


@dataclass(frozen=True)
class Contracts:
    """f = Σ_k operand[i, k] · weight[.., k, ..]: a projection along the last axis of `operand`.

    `k_axis` and `n_axis` say where the weight holds the contracted axis and the output columns.
    """

    operand: str
    weight: str
    k_axis: int
    n_axis: int


@dataclass(frozen=True)
class HalvesOf:
    """f = one half of the operand's columns: `index` is an attribute, 0 or 1."""

    operand: str


@dataclass(frozen=True)
class StatisticOf:
    """f reduces each row of `operand`; `partial` and `merge` name the blocks that split it.

    merge(partial(x)) = f(x), where partial reduces column ranges on their own.
    """

    operand: str
    partial: str
    merge: str


@dataclass(frozen=True)
class Picks:
    """f[i] = operand[i, index[i]], and NaN where the index names no column."""

    operand: str
    index: str


@dataclass(frozen=True)
class Gathers:
    """f = operand ⊙ weight[index], and NaN in rows whose index names no row of `weight`.

    The kernel that computes it loads the rows of `weight` through the index.
    """

    operand: str
    weight: str
    index: str


@dataclass(frozen=True)
class FactorsOut:
    """f(scale · x) = attr · inner(x, scale): a reader may apply the positive `attr` itself.

    Fields:
        operand: x.
        attr: name of the attribute.
        triton: `inner` as a `@triton.jit` function `(x, scale, ATTR, FAST)`; scale is a number or
            a column of the tile x.
        reference: `inner` in torch: `(x, scale, attr)`.
    """

    operand: str
    attr: str
    triton: Any = field(repr=False)
    reference: Callable[..., Any] = field(repr=False)


Law = (
    LinearIn
    | HomogeneousIn
    | Rowwise
    | Elementwise
    | Positive
    | Scales
    | Shifts
    | Contracts
    | HalvesOf
    | StatisticOf
    | Picks
    | Gathers
    | FactorsOut
)
