"""Each mechanism of the planner on the smallest program that needs it."""

from __future__ import annotations

import pytest

from fusedsl.blocks import library
from fusedsl.fuse import CostModel, Plan, anchor_operands, fuse
from fusedsl.ir import Dim, Graph, GraphBuilder, Kind, TensorType, evaluate, random_inputs, tensor
from tests.fuse.harness import assert_same, kinds, plan_of, run_plan
from tests.fuse.test_random import assert_well_formed


def builder(**params: str) -> GraphBuilder:
    """A builder with parameters such as `x="bf16[M, 64]"`; those called w.. are weights."""
    b = GraphBuilder(library(), "program")
    for name, text in params.items():
        b.add_param(name, TensorType.parse(text), weight=name.startswith("w"))
    return b


def planned(b: GraphBuilder, *outputs: str, cost: CostModel | None = None) -> Plan:
    """The plan of a graph as it stands, checked for form and meaning."""
    b.outputs = list(outputs)
    graph = b.finish()
    plan = fuse(graph, cost)
    check(plan, graph)
    return plan


def check(plan: Plan, graph: Graph) -> None:
    assert_well_formed(plan)
    symbols = {s for p in graph.params for s in p.type.symbols}
    inputs = random_inputs(graph, dict.fromkeys(symbols, 5), seed=1)
    assert_same(run_plan(plan, inputs), evaluate(graph, inputs))


def of(text: str, **options: object) -> Plan:
    """The plan of DSL text, checked for form."""
    plan = plan_of(text, **options)
    assert_well_formed(plan)
    return plan


# row kernels -----------------------------------------------------------------------------------
def test_softmax_is_one_row_kernel() -> None:
    plan = of("kernel k(x: bf16[M, 70]) -> (y: bf16[M, 70]) { y = softmax(x); }")
    (kernel,) = plan.kernels
    assert kernel.kind is Kind.ROW_REDUCTION and kernel.writes == ("y",) and kernel.reads == ("x",)


def test_a_norm_that_is_an_output_is_one_row_kernel_that_writes_it() -> None:
    for norm in ("rms_norm(x, eps=1e-6)", "layer_norm(x, eps=1e-6)"):
        plan = of(f"kernel k(x: bf16[M, 64]) -> (h: bf16[M, 64]) {{ h = {norm}; }}")
        (kernel,) = plan.kernels
        assert kernel.kind is Kind.ROW_REDUCTION and kernel.writes == ("h",)


def test_a_norm_that_is_an_output_and_is_projected_is_written_once() -> None:
    plan = of("""
kernel k(x: bf16[M, 64], w: weight bf16[32, 64]) -> (h: bf16[M, 64], y: bf16[M, 32]) {
  h = rms_norm(x, eps=1e-6);
  y = linear(h, w);
}""")
    assert kinds(plan) == ["row_reduction", "gemm"]
    assert plan.kernels[0].writes == ("h",)


def test_params_that_only_row_kernels_read() -> None:
    plan = of("""
kernel k(x: bf16[M, 64], z: bf16[M, 64], w: weight bf16[32, 64])
    -> (y: bf16[M, 32], h: bf16[M, 64]) {
  y = linear(x, w);
  h = layer_norm(z, eps=1e-6);
}""")
    assert sorted(kinds(plan)) == ["gemm", "row_reduction"]
    (rows,) = [k for k in plan.kernels if k.kind is Kind.ROW_REDUCTION]
    assert rows.reads == ("z",)


def test_row_kernels_of_one_domain_are_one_kernel() -> None:
    plan = of("""
kernel k(x: bf16[M, 64], z: bf16[M, 64]) -> (a: bf16[M, 64], b: bf16[M, 64], c: bf16[M, 64]) {
  a = rms_norm(x, eps=1e-6);
  b = softmax(z);
  c = x + z;
}""")
    (kernel,) = plan.kernels
    assert kernel.writes == ("a", "b", "c")


def test_row_kernels_of_two_domains_are_two() -> None:
    plan = of("""
kernel k(x: bf16[M, 64], z: bf16[M, 32]) -> (a: bf16[M, 64], b: bf16[M, 32]) {
  a = rms_norm(x, eps=1e-6);
  b = rms_norm(z, eps=1e-6);
}""")
    assert [k.writes for k in plan.kernels] == [("a",), ("b",)]


def test_row_kernels_that_would_wait_for_themselves_stay_apart() -> None:
    b = builder(x="bf16[M, 64]", w="bf16[64, 64]")
    first = b.call("exp", "x")
    z = b.call("linear", first, "w", name="z")
    second = b.call("mul", b.call("exp", z), b.call("row_sum", z), name="second")
    b.call("linear", second, "w", name="y")
    plan = planned(b, "y", first)
    rows = [k for k in plan.kernels if k.kind is not Kind.GEMM]
    assert len(rows) == 2, "the second waits for a projection of the first"
    assert plan.kernels.index(rows[0]) < plan.kernels.index(rows[1])


def test_two_projections_apart_tempt_their_row_kernels_into_a_cycle() -> None:
    """a → P → b and c → Q → d over one domain: {a, d} and {b, c} as pairs would wait in a ring."""
    b = builder(x="bf16[M, 64]", u="bf16[M, 64]", w="bf16[64, 64]")
    a, c = (b.call("mul", n, b.call("row_sum", n)) for n in ("x", "u"))
    p, q = b.call("linear", a, "w"), b.call("linear", c, "w")
    d = b.call("mul", q, b.call("row_max", q))
    e = b.call("mul", p, b.call("row_max", p))
    y, z = b.call("linear", d, "w"), b.call("linear", e, "w")
    plan = planned(b, y, z)
    rows = [k for k in plan.kernels if k.kind is not Kind.GEMM]
    assert len(rows) == 2 and a in rows[0].writes and c in rows[0].writes


# bind time -------------------------------------------------------------------------------------
def test_outputs_that_are_bind_time_values() -> None:
    b = builder(x="bf16[M, 64]", w_a="bf16[64]", w_b="bf16[64]")
    b.call("add", "w_a", "w_b", name="w_sum")
    b.call("mul", "x", "w_sum", name="y")
    plan = planned(b, "w_sum", "y")
    assert [n.name for n in plan.bind] == ["w_sum"]
    assert len(plan.kernels) == 1 and plan.kernels[0].reads == ("x", "w_sum")


def test_a_program_of_weights_alone_has_no_kernel() -> None:
    b = builder(w_a="bf16[64]", w_b="bf16[64]")
    b.call("add", "w_a", "w_b", name="y")
    assert planned(b, "y").kernels == ()


# projections -----------------------------------------------------------------------------------
def test_a_projection_that_is_an_output_is_stored_beside_what_follows() -> None:
    b = builder(x="bf16[M, 64]", w="bf16[32, 64]")
    b.call("linear", "x", "w", name="z")
    b.call("gelu", "z", name="y")
    plan = planned(b, "z", "y")
    (kernel,) = plan.kernels
    assert kernel.writes == ("z", "y")


def test_a_join_of_two_projections_runs_in_the_later_one() -> None:
    b = builder(x="bf16[M, 64]", w_a="bf16[32, 64]", w_b="bf16[32, 64]")
    b.call("linear", "x", "w_a", name="first")
    b.call("linear", "x", "w_b", name="second")
    b.call("mul", "first", "second", name="y")
    plan = planned(b, "y")
    assert [k.blocks for k in plan.kernels] == [("linear",), ("linear", "mul")]
    assert plan.kernels[1].reads == ("x", "w_b", "first")


def test_what_needs_a_later_projection_does_not_join_an_earlier_one() -> None:
    b = builder(x="bf16[M, 64]", w="bf16[64, 64]")
    first = b.call("linear", "x", "w")
    second = b.call("linear", first, "w")
    y = b.call("add", second, first)
    plan = planned(b, y)
    assert [k.blocks for k in plan.kernels] == [("linear",), ("linear", "add")]


def test_halves_of_a_projection_that_somebody_reads_whole_are_loaded() -> None:
    b = builder(x="bf16[M, 64]", w="bf16[64, 64]")
    z = b.call("linear", "x", "w", name="z")
    gated = b.call("mul", b.call("half", z, index=0), b.call("half", z, index=1), name="gated")
    b.call("exp", z, name="y")
    plan = planned(b, gated, "y")
    assert not any(k.paired for k in plan.kernels)
    assert plan.writer("z") is not None and "half" in plan.kernels[-1].blocks


def test_halves_alone_pair_the_projection() -> None:
    b = builder(x="bf16[M, 64]", w="bf16[128, 64]")
    z = b.call("linear", "x", "w", name="z")
    y = b.call("mul", b.call("half", z, index=0), b.call("half", z, index=1))
    (kernel,) = planned(b, y).kernels
    assert kernel.paired and kernel.cols == Dim(64) and "z" not in kernel.writes


def test_halves_of_halves_come_from_memory() -> None:
    b = builder(x="bf16[M, 64]", w="bf16[128, 64]")
    z = b.call("linear", "x", "w", name="z")
    left, right = (b.call("half", z, index=i) for i in (0, 1))
    inner = b.call("half", left, index=1)
    plan = planned(b, right, inner)
    first, second = plan.kernels
    assert first.paired and left in first.writes and second.reads == (left,)


def test_anchor_operands() -> None:
    b = builder(x="bf16[M, 64]", w="bf16[64, 32]")
    b.call("matmul", "x", "w", name="y")
    (kernel,) = planned(b, "y").kernels
    assert kernel.anchor is not None and anchor_operands(kernel.anchor) == ("x", "w")


# columns ---------------------------------------------------------------------------------------
def test_a_column_made_of_one_statistic_is_stored_instead_of_it() -> None:
    plan = of("""
kernel k(x: bf16[M, 64], w: weight bf16[32, 64]) -> (y: bf16[M, 32]) {
  y = linear(rms_norm(x, eps=1e-6), w);
}""")
    rows, gemm = plan.kernels
    assert rows.blocks == ("row_mean_square", "inv_rms") and len(rows.writes) == 1
    assert gemm.blocks == ("linear", "mul")


def test_a_chain_of_columns_is_promoted_to_its_end() -> None:
    b = builder(x="bf16[M, 64]", z="bf16[M, 32]")
    s = b.call("row_sum", "x")
    c = b.call("exp", b.call("neg", s))
    y = b.call("mul", "z", c)
    plan = planned(b, y)
    assert plan.kernels[0].writes == (c,)


def test_a_statistic_with_two_readers_is_stored_itself() -> None:
    b = builder(x="bf16[M, 64]", z="bf16[M, 32]")
    s = b.call("row_sum", "x")
    y = b.call("mul", b.call("mul", "z", b.call("exp", s)), b.call("neg", s))
    assert planned(b, y).kernels[0].writes == (s,)


def test_a_column_of_two_kernels_statistics_is_not_promoted() -> None:
    b = builder(x="bf16[M, 64]", u="bf16[M, 48]", z="bf16[M, 32]")
    s, t = b.call("row_sum", "x"), b.call("row_sum", "u")
    y = b.call("mul", "z", b.call("mul", s, t))
    plan = planned(b, y)
    assert {w for k in plan.kernels[:2] for w in k.writes} == {s, t}


def test_a_column_output_is_made_beside_its_statistic() -> None:
    b = builder(x="bf16[M, 64]")
    s = b.call("row_mean_square", "x")
    r = b.call("inv_rms", s, eps=1e-6)
    twice = b.call("mul", r, 2.0)
    (kernel,) = planned(b, s, r, twice).kernels
    assert kernel.cols == Dim(64) and set(kernel.writes) == {s, r, twice}


# statistics taken where x streams by -----------------------------------------------------------
def streaming(*, late: bool) -> GraphBuilder:
    """s = statistic of x, applied after a second projection (`late`) or in the first itself."""
    b = builder(x="bf16[M, 64]", w_a="bf16[32, 64]", w_b="bf16[16, 32]")
    s = b.call("row_mean_square", "x", name="s")
    z = b.call("linear", "x", "w_a")
    if not late:
        z = b.call("mul", z, s, out_dtype="bf16")
    z = b.call("linear", z, "w_b")
    b.call("mul", z, s, name="y") if late else b.call("neg", z, name="y")
    return b


def test_a_statistic_is_streamed_by_a_projection_that_does_not_need_it() -> None:
    plan = planned(streaming(late=True), "y")
    assert kinds(plan) == ["gemm", "gemm"]
    assert [n.name for n in plan.kernels[0].streamed] == ["s"] and "s" in plan.kernels[0].writes
    assert any("which streams x" in d for d in plan.decisions)


def test_a_statistic_is_not_streamed_by_the_kernel_that_needs_it() -> None:
    plan = planned(streaming(late=False), "y")
    assert kinds(plan) == ["row_reduction", "gemm", "gemm"]
    assert not any(k.streamed for k in plan.kernels)


def test_a_statistic_is_not_streamed_by_a_kernel_after_one_that_needs_it() -> None:
    b = builder(x="bf16[M, 64]", w="bf16[64, 64]")
    s = b.call("row_sum", "x")
    first = b.call("mul", b.call("linear", "x", "w"), s)
    b.call("add", b.call("linear", "x", "w", out_dtype="fp32"), first, name="y")
    plan = planned(b, "y")
    assert kinds(plan)[0] == "row_reduction" or plan.kernels[0].streamed
    for kernel in plan.kernels:
        assert not ({n.name for n in kernel.streamed} & {i for n in kernel.steps for i in n.inputs})


def test_a_statistic_that_is_an_output_is_not_streamed() -> None:
    plan = planned(streaming(late=True), "y", "s")
    assert not any(k.streamed for k in plan.kernels)


def test_a_column_of_a_streamed_statistic_replaces_it() -> None:
    b = builder(x="bf16[M, 64]", w_a="bf16[32, 64]", w_b="bf16[16, 32]")
    mean, var = b.call_all(library()["row_moments"], ["x"], {}, ("mean", "var"))
    r = b.call("inv_rms", var, eps=1e-6, name="r")
    z = b.call("linear", b.call("linear", "x", "w_a"), "w_b")
    b.call("mul", b.call("mul", z, r), mean, name="y")
    plan = planned(b, "y")
    assert set(plan.kernels[0].writes) >= {"r", "mean"} and "var" not in plan.kernels[0].writes
    assert plan.kernels[0].blocks == ("linear", "row_moments", "inv_rms")


def test_a_single_column_is_not_streamed() -> None:
    b = builder(x="bf16[M, 1]", w_a="bf16[32, 1]", w_b="bf16[16, 32]")
    s = b.call("row_mean_square", "x")
    z = b.call("linear", b.call("linear", "x", "w_a"), "w_b")
    plan = planned(b, b.call("mul", z, s))
    assert not any(k.streamed for k in plan.kernels)


# cost ------------------------------------------------------------------------------------------
def test_storing_pays_with_enough_readers() -> None:
    cost = CostModel(launch=0)
    value, leaf = tensor("bf16", "M", 1024), tensor("fp32", "M", 1024)
    pays = [cost.recompute_pays(value, [leaf], [[leaf]] * n) for n in range(1, 8)]
    assert pays[0] and not pays[-1] and pays == sorted(pays, reverse=True)


def test_a_dear_launch_favours_computing_again() -> None:
    value, leaf = tensor("bf16", "M", 1024), tensor("fp32", "M", 1024)
    readers = [[leaf]] * 8
    assert not CostModel(launch=0).recompute_pays(value, [leaf], readers)
    assert CostModel(launch=10**9).recompute_pays(value, [leaf], readers)


def test_readers_that_load_the_leaves_anyway_pay_nothing() -> None:
    value, leaf = tensor("bf16", "M", 1024), tensor("fp32", "M", 1024)
    assert CostModel(launch=0).recompute_pays(value, [leaf], [[]] * 100)


def test_nominal_and_given_sizes() -> None:
    value = tensor("bf16", "M", "2*N")
    assert CostModel().nbytes(value) == 2 * 4096 * 2 * 4096
    assert CostModel(dims={"M": 3, "N": 5}).nbytes(value) == 2 * 3 * 10
    assert CostModel().nbytes(tensor("fp32", 7)) == 28
    assert CostModel(dims={"M": 2}).total([tensor("fp32", "M", 1)] * 3) == 24


def shared(readers: int) -> GraphBuilder:
    """One floating sum of two tiles, read by the epilogues of several projections."""
    b = builder(x="bf16[M, 64]", u="fp32[M, 64]", v="fp32[M, 64]", w="bf16[64, 64]")
    both = b.call("add", "u", "v", name="both", out_dtype="bf16")
    z = "x"
    for _ in range(readers):
        z = b.call("add", b.call("linear", z, "w"), both)
    b.outputs = [z]
    return b


@pytest.mark.parametrize(("readers", "stored"), [(1, False), (2, True), (6, True)])
def test_a_float_that_many_kernels_read_is_stored(readers: int, stored: bool) -> None:
    b = shared(readers)
    plan = planned(b, *b.outputs, cost=CostModel(launch=0))
    assert (plan.writer("both") is not None) == stored
    said = "stored once" if stored else "computed again"
    assert [d for d in plan.decisions if d.startswith("both")] == [
        next(d for d in plan.decisions if said in d)
    ]


def test_launch_price_flips_the_decision() -> None:
    b = shared(6)
    dear = planned(b, *b.outputs, cost=CostModel(launch=10**12))
    assert dear.writer("both") is None and len(dear.kernels) == 6


# the plan as data ------------------------------------------------------------------------------
def test_what_a_plan_tells() -> None:
    plan = of("""
kernel k(a: bf16[M, 32], x: bf16[M, 64], w: weight bf16[64, 32], v: weight bf16[16, 64])
    -> (h: bf16[M, 16]) {
  s = linear(a, w) + x;
  h = linear(rms_norm(s, eps=1e-6), v);
}""")
    first, second = plan.kernels
    assert plan.writer("s") is first and plan.writer("a") is None
    ((symbol, kernel, node),) = plan.tile_symbols()
    assert (symbol, kernel) == ("tiles_s", first) and node in first.steps
    env = {"M": 10, symbol: 1}
    read_and_written = 10 * 32 + 64 * 32 + 10 * 64 + 10 * 64
    assert plan.kernel_bytes(first, env) == 2 * read_and_written + 4 * 10
    assert {"a", "x", "w", "s", "h"} <= plan.stored
    assert first.nodes[0] is first.anchor and second.name == "k1_linear"
