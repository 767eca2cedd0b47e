"""Projections that take statistics of what they stream along, by way of their plans alone."""

from __future__ import annotations

import pytest
import torch

from fusedsl.fuse import (
    Form,
    Plan,
    adds_up,
    can_go,
    left_sums,
    readers,
    without,
    without_sums,
)
from fusedsl.ir import Kind, random_inputs
from tests.fuse.harness import plan_of, run_plan

NORMED = """kernel k(x: fp32[M, 24], g: weight fp32[24], w: weight fp32[16, 24])
    -> (y: fp32[M, 16]) { y = linear(rms_norm(x, g), w); }"""
CHAINED = """kernel k(x: fp32[M, 24], z: fp32[M, 16], w: weight fp32[16, 24], g: weight fp32[16],
    v: weight fp32[20, 16], u: weight fp32[8, 16]) -> (a: fp32[M, 20], b: fp32[M, 8]) {
  s = linear(x, w) + z; h = rms_norm(s, g); a = silu(linear(h, v)); b = linear(h, u); }"""


def values(plan: Plan) -> dict[str, torch.Tensor]:
    return run_plan(plan, random_inputs(plan.graph, {"M": 7}, seed=3))


def same(a: Plan, b: Plan) -> None:
    first, second = values(a), values(b)
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=1e-10, atol=1e-10)


def test_a_row_kernel_goes() -> None:
    plan = plan_of(NORMED)
    gone = [k for k in plan.kernels if can_go(plan, k) and adds_up(k)]
    assert [k.kind for k in gone] == [Kind.ROW_REDUCTION]
    formed = readers(plan, gone[0])
    made = without(plan, gone, Form.SPECIALISED, formed)
    (kernel,) = made.kernels
    assert kernel.specialised and kernel.name == "k0_linear"
    assert [n.block.name for n in kernel.recomputed] == ["row_mean_square", "inv_rms"]
    assert not set(gone[0].writes) & set(kernel.reads)
    same(plan, made)


def test_partial_sums_go() -> None:
    plan = plan_of(CHAINED)
    (left,) = left_sums(plan)
    assert left.readers == ("k1_linear", "k2_linear")
    made = without_sums(plan, [left], Form.SPECIALISED)
    assert [k.form for k in made.kernels] == [Form.TILED, Form.SPECIALISED, Form.SPECIALISED]
    assert [k.name for k in made.kernels] == [k.name for k in plan.kernels]
    assert made.kernels[0].writes == ("s",) and not list(made.tile_symbols())
    for kernel in made.kernels[1:]:
        assert [n.block.name for n in kernel.recomputed] == ["row_mean_square"]
        assert left.node.name not in kernel.reads and "s" in kernel.reads
    same(plan, made)


LAST = "s = linear(x, w) + z; r = row_mean_square(s); "
HEAD = """kernel k(x: fp32[M, 24], z: fp32[M, 16], w: weight fp32[16, 24], v: weight fp32[20, 16])
    -> (a: fp32[M, 20]{more}) {{ {body} }}"""


@pytest.mark.parametrize(
    ("body", "more"),
    [
        ("s = linear(x, w) + z; a = linear(layer_norm(s), v);", ""),
        (LAST + "a = linear(s * inv_rms(r, eps=1e-6), v); b = s * r;", ", b: fp32[M, 16]"),
        (LAST + "a = linear(z * inv_rms(r, eps=1e-6), v);", ""),
    ],
    ids=["moments do not add up", "a row kernel reads them", "of something else"],
)
def test_partial_sums_that_stay(body: str, more: str) -> None:
    plan = plan_of(HEAD.format(body=body, more=more))
    assert any("tiles" in n.attr_map for k in plan.kernels for n in k.steps)
    assert not list(left_sums(plan))


def test_moments_do_not_add_up() -> None:
    plan = plan_of(NORMED.replace("rms_norm(x, g)", "layer_norm(x, g)"))
    rows = [k for k in plan.kernels if k.kind is Kind.ROW_REDUCTION]
    assert rows and not any(adds_up(k) for k in rows)


def test_tiles_that_an_epilogue_reads() -> None:
    plan = plan_of(CHAINED)
    plan = without_sums(plan, list(left_sums(plan)), Form.SPECIALISED)
    assert [plan.tiles_read(k) for k in plan.kernels] == [("z",), (), ()]
