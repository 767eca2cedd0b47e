"""Every law that a block declares holds on random fp64 data, and the checks reject false ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusedsl.blocks import library
from fusedsl.blocks.epilogue import statistics
from fusedsl.ir import (
    Block,
    Contracts,
    Elementwise,
    FactorsOut,
    Gathers,
    HalvesOf,
    HomogeneousIn,
    Law,
    LinearIn,
    Picks,
    Positive,
    Rowwise,
    Scales,
    Shifts,
    StatisticOf,
    as_tuple,
)
from tests.blocks.harness import attr_variants, bound, each, random_operands

Apply = Callable[..., tuple[torch.Tensor, ...]]


class Case:
    """A block's reference with attributes fixed, and operands that can be replaced by name."""

    def __init__(self, block: Block, attrs: dict[str, Any]):
        self.block, self.attrs = block, bound(attrs)
        self.operands = dict(
            zip([o.name for o in block.operands], random_operands(block), strict=True)
        )

    def __call__(self, **replaced: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = {**self.operands, **replaced}
        return as_tuple(self.block.reference(*values.values(), **self.attrs))

    def tiles(self) -> dict[str, torch.Tensor]:
        return {n: v for n, v in self.operands.items() if v is not None and v.dim() == 2}

    def indices(self) -> dict[str, torch.Tensor]:
        names = [o.name for o in self.block.operands if o.index]
        return {n: self.operands[n] for n in names}

    def other(self, name: str) -> torch.Tensor:
        shape = self.operands[name].shape
        return torch.randn(shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


def same(left: tuple[torch.Tensor, ...], right: tuple[torch.Tensor, ...]) -> None:
    torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


def check_linear(case: Case, law: LinearIn) -> None:
    x, z = case.operands[law.operand], case.other(law.operand)
    mixed = case(**{law.operand: 0.7 * x - 1.9 * z})
    apart = zip(case(**{law.operand: x}), case(**{law.operand: z}), strict=True)
    same(mixed, tuple(0.7 * fx - 1.9 * fz for fx, fz in apart))


def check_homogeneous(case: Case, law: HomogeneousIn) -> None:
    x = case.operands[law.operand]
    c = 0.1 + case.other(law.operand).abs()[:, :1]
    scaled = case(**{law.operand: c * x})
    same(scaled, tuple(c**law.degree * f for f in case()))


def check_rowwise(case: Case, law: Rowwise) -> None:
    before = case()
    weights = (*case.block.laws_of(Contracts), *case.block.laws_of(Gathers))
    shared = {claim.weight for claim in weights}
    tiles = {n: v for n, v in case.tiles().items() if n not in shared}
    changed = {n: torch.cat((v[:1] + 1.5, v[1:])) for n, v in tiles.items()}
    same(tuple(f[1:] for f in case(**changed)), tuple(f[1:] for f in before))
    rows = {**tiles, **case.indices()}
    shuffled = case(**{n: v.flip(0) for n, v in rows.items()})
    same(shuffled, tuple(f.flip(0) for f in before))


def check_elementwise(case: Case, law: Elementwise) -> None:
    changed = {}
    for name, value in case.tiles().items():
        changed[name] = value.clone()
        changed[name][0, 0] += 1.5
    for before, after in zip(case(), case(**changed), strict=True):
        assert after.shape == torch.broadcast_shapes(*(v.shape for v in changed.values()))
        keep = torch.ones_like(before, dtype=torch.bool)
        keep[0, 0] = False
        same((after[keep],), (before[keep],))


def check_positive(case: Case, law: Positive) -> None:
    for f in case():
        assert (f > 0).all()


def check_scales(case: Case, law: Scales) -> None:
    column = case.operands[law.factor][:, :1]
    same(case(**{law.factor: column}), (case.operands[law.operand] * column,))


def check_shifts(case: Case, law: Shifts) -> None:
    column = case.operands[law.shift][:, :1]
    same(case(**{law.shift: column}), (case.operands[law.operand] + law.sign * column,))


def check_contracts(case: Case, law: Contracts) -> None:
    x, w = case.operands[law.operand], case.operands[law.weight]
    assert {law.k_axis, law.n_axis} == {0, 1}
    same(case(), (torch.einsum("mk,kn->mn", x, w.movedim(law.k_axis, 0)),))


def check_halves(case: Case, law: HalvesOf) -> None:
    x = case.operands[law.operand]
    half = x.shape[-1] // 2
    start = case.attrs["index"] * half
    same(case(), (x[..., start : start + half],))


def check_picks(case: Case, law: Picks) -> None:
    x, index = case.operands[law.operand], case.operands[law.index].clone()
    index[0], index[1] = -1, x.shape[1]
    found = case(**{law.index: index})[0]
    assert found[:2].isnan().all()
    same((found[2:],), (x.gather(1, index.clamp(0, x.shape[1] - 1)[:, None])[2:],))


def check_gathers(case: Case, law: Gathers) -> None:
    x, w, index = (case.operands[n] for n in (law.operand, law.weight, law.index))
    index = index.clone()
    index[0], index[1] = -1, len(w)
    found = case(**{law.index: index})[0]
    assert found[:2].isnan().all()
    same((found[2:],), (x[2:] * w[index[2:]],))


def check_factors_out(case: Case, law: FactorsOut) -> None:
    x, scale = case.operands[law.operand], 0.1 + torch.rand(5, 1, dtype=torch.float64)
    factor = case.attrs[law.attr]
    assert factor > 0
    same(case(**{law.operand: scale * x}), (factor * law.reference(x, scale, factor),))


def check_statistic(case: Case, law: StatisticOf) -> None:
    partial, merge = library()[law.partial], library()[law.merge]
    for width in (1, 2, 7, 12, 64):
        x = 3.0 + torch.randn(4, width, dtype=torch.float64)
        whole = case(**{law.operand: x})
        for pieces in (1, 2, 3, 5, 64):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(statistics, "REFERENCE_PIECES", pieces)
                states = as_tuple(partial.reference(x, tiles=pieces))
                same(as_tuple(merge.reference(*states, width=width)), whole)


CHECKS: dict[type[Law], Callable[[Case, Any], None]] = {
    LinearIn: check_linear,
    HomogeneousIn: check_homogeneous,
    Rowwise: check_rowwise,
    Elementwise: check_elementwise,
    Positive: check_positive,
    Scales: check_scales,
    Shifts: check_shifts,
    Contracts: check_contracts,
    HalvesOf: check_halves,
    StatisticOf: check_statistic,
    Picks: check_picks,
    Gathers: check_gathers,
    FactorsOut: check_factors_out,
}

CLAIMS = [(b.name, law) for b in library().values() for law in b.laws]


@pytest.mark.parametrize(("name", "law"), CLAIMS, ids=[f"{n}-{law}" for n, law in CLAIMS])
def test_declared_law_holds(name: str, law: Law) -> None:
    block = library()[name]
    for attrs in attr_variants(block):
        if attrs.get("offset") == 1 and "gain" in [o.name for o in block.operands]:
            continue  # needs a gain, which is optional
        CHECKS[type(law)](Case(block, attrs), law)


FALSE = [
    ("gelu", LinearIn("x")),
    ("add", LinearIn("a")),
    ("div", LinearIn("b")),
    ("silu", HomogeneousIn("x", 1)),
    ("relu", HomogeneousIn("x", 2)),
    ("row_max", Elementwise()),
    ("softmax", Elementwise()),
    ("weight_sum", Rowwise()),
    ("tanh", Positive()),
    ("div", Scales("a", "b")),
    ("sub", Shifts("a", "b")),
    ("matmul", Contracts("x", "w", k_axis=1, n_axis=0)),
    ("row_sum", StatisticOf("x", "partial_max", "merge_max")),
    ("row_mean", StatisticOf("x", "partial_mean", "merge_sum")),
]


@pytest.mark.parametrize(("name", "law"), FALSE, ids=[f"{n}-{law}" for n, law in FALSE])
def test_checks_reject_false_claims(name: str, law: Law) -> None:
    block = library()[name]
    case = Case(block, next(attr_variants(block)))
    with pytest.raises((AssertionError, RuntimeError)):
        CHECKS[type(law)](case, law)


@pytest.mark.parametrize("name", each(lambda b: b.kind.value in ("pointwise", "row_reduction")))
def test_loops_over_rows_declare_rowwise(name: str) -> None:
    assert library()[name].has_law(Rowwise)


def test_laws_name_operands_and_blocks_that_exist() -> None:
    for block in library().values():
        names = {o.name for o in block.operands}
        for law in block.laws:
            for part in ("operand", "factor", "shift", "weight"):
                assert getattr(law, part, None) in {None, *names}
            for part in ("partial", "merge"):
                assert getattr(law, part, "add") in library()
