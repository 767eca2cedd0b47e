"""Random programs: a plan computes what the program means, and its kernels fit together."""

from __future__ import annotations

from collections import Counter

import pytest

from fusedsl.fuse import CostModel, Plan
from fusedsl.ir import Kind, evaluate, random_inputs
from tests.fuse.harness import assert_same, plan_of, run_plan
from tests.rewrite.random_graphs import Programs

BATCHES, EACH = 8, 20
OPTIONS = ({}, {"numerics": "as_written"}, {"fp32_shift": True})

#: Storing everything, and nothing, that the cost model decides about.
EXTREMES = (CostModel(launch=-(10**12)), CostModel(launch=10**12))


def assert_well_formed(plan: Plan) -> None:
    """What every plan promises."""
    known = {p.name for p in plan.graph.params} | {r.name for n in plan.bind for r in n.results}
    written: list[str] = []
    for kernel in plan.kernels:
        assert set(kernel.reads) <= known, f"{kernel.name} reads what is not there yet"
        assert len(set(kernel.reads)) == len(kernel.reads)
        assert set(kernel.writes) <= kernel.computed and kernel.writes
        assert not set(kernel.reads) & kernel.computed
        assert (kernel.kind is Kind.GEMM) == (kernel.anchor is not None)
        assert all(kernel.kind is Kind.GEMM for n in kernel.nodes if "tiles" in n.attr_map)
        written += kernel.writes
        known |= set(kernel.writes)
    assert len(set(written)) == len(written), "a value is written twice"
    assert len({k.name for k in plan.kernels}) == len(plan.kernels)
    read = {n for k in plan.kernels for n in k.reads} | set(plan.graph.outputs)
    assert set(written) <= read, "a value is stored that nobody reads"
    computed = {name for k in plan.kernels for name in k.computed}
    nodes = [n for n in plan.graph.run_time_nodes()]
    assert {r.name for n in nodes for r in n.results if _is_read(plan, r.name)} <= computed
    anchors = [k.anchor.name for k in plan.kernels if k.anchor]
    assert sorted(anchors) == sorted(n.name for n in nodes if n.block.kind is Kind.GEMM)
    assert set(plan.graph.outputs) <= known


def _is_read(plan: Plan, name: str) -> bool:
    return bool(plan.graph.readers[name]) or name in plan.graph.outputs


@pytest.mark.parametrize("options", OPTIONS, ids=["moved", "as_written", "fp32_shift"])
@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_programs(batch: int, options: dict[str, object]) -> None:
    for seed in range(batch * EACH, (batch + 1) * EACH):
        graph = Programs(seed).graph()
        plan = plan_of(graph, **options)
        assert_well_formed(plan)
        inputs = random_inputs(graph, {"M": 5}, seed=seed)
        assert_same(run_plan(plan, inputs), evaluate(graph, inputs))


@pytest.mark.parametrize("cost", EXTREMES, ids=["store all", "store nothing"])
def test_random_programs_at_any_price(cost: CostModel) -> None:
    for seed in range(200, 260):
        graph = Programs(seed).graph()
        plan = plan_of(graph, cost)
        assert_well_formed(plan)
        inputs = random_inputs(graph, {"M": 3}, seed=seed)
        assert_same(run_plan(plan, inputs), evaluate(graph, inputs))


def test_random_programs_reach_every_form() -> None:
    count: Counter[str] = Counter()
    for seed in range(160):
        for kernel in (plan := plan_of(Programs(seed).graph())).kernels:
            count[kernel.kind.value] += 1
            count["paired"] += kernel.paired
            count["streamed"] += len(kernel.streamed)
            partials = sum("tiles" in n.attr_map for n in kernel.steps)
            count["partials"] += partials
            count["paired partials"] += partials * kernel.paired
            count["columns written"] += kernel.kind is Kind.GEMM and len(kernel.writes) > 1
        count["stored"] += sum("stored once" in d for d in plan.decisions)
        count["recomputed"] += sum("computed again" in d for d in plan.decisions)
    wanted = {"gemm", "row_reduction", "pointwise", "paired", "streamed", "partials"}
    wanted |= {"paired partials", "recomputed"}
    assert all(count[form] >= 3 for form in wanted), count


def test_deterministic() -> None:
    for seed in range(20):
        first, second = (plan_of(Programs(seed).graph()) for _ in range(2))
        assert first.kernels == second.kernels and first.decisions == second.decisions
