"""The kernels that the examples become."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from examples import SMALL, read
from fusedsl.frontend import parse
from fusedsl.fuse import KernelPlan, Plan
from fusedsl.ir import Kind, Layout, evaluate, random_inputs
from fusedsl.rewrite import expand, rewrite
from tests.fuse.harness import assert_same, kinds, plan_of, run_plan


def rendered(plan: Plan) -> str:
    """A plan in a few lines: one paragraph per kernel."""
    lines = [f"{plan.graph.name}: bind {', '.join(n.name for n in plan.bind) or 'nothing'}"]
    for k in plan.kernels:
        form = f"{k.kind.value} [{k.rows}, {k.cols}]" + (" paired" if k.paired else "")
        lines += [
            f"{k.name}: {form}",
            f"  {', '.join(_step(k, n) for n in k.nodes)}",
            f"  {', '.join(k.reads)} -> {', '.join(k.writes)}",
        ]
    return "\n".join([*lines, *(f"# {line}" for line in plan.decisions)]) + "\n"


def _step(kernel: KernelPlan, node) -> str:
    return f"{node.block.name}*" if node in kernel.streamed else node.block.name


@pytest.mark.parametrize("name", SMALL)
def test_plans(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"fuse/{name}.txt", rendered(plan_of(read(name))))


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", SMALL)
def test_plans_compute_the_program(name: str, dtype: str) -> None:
    for options in ({}, {"numerics": "as_written"}, {"fp32_shift": True}):
        plan = plan_of(read(name, small=True, dtype=dtype), **options)
        source = parse(read(name, small=True, dtype=dtype))
        inputs = random_inputs(source, {"M": 5}, seed=1)
        assert_same(run_plan(plan, inputs), evaluate(source, inputs))


def _gemms(plan: Plan) -> list[KernelPlan]:
    return [k for k in plan.kernels if k.kind is Kind.GEMM]


def _tiles_written_outside_gemms(plan: Plan) -> list[str]:
    return [
        w
        for k in plan.kernels
        if k.kind is not Kind.GEMM
        for w in k.writes
        if plan.type_of(w).layout is Layout.TILE
    ]


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_llama_mlp_is_two_projections_and_one_pass_for_statistics(dtype: str) -> None:
    plan = plan_of(read("llama_mlp", dtype=dtype))
    assert kinds(plan) == ["row_reduction", "gemm", "gemm"]
    statistics, up, down = plan.kernels
    assert statistics.writes == ("inv_rms_1",), "r is stored, not the mean square"
    assert up.paired and up.cols.factor == 14336 and up.writes == ("a",)
    assert down.blocks == ("linear", "add") and down.writes == ("y",)


def test_decoder_stack_never_normalises_on_its_own() -> None:
    plan = plan_of(read("decoder_stack"))
    assert len(_gemms(plan)) == 4
    assert _tiles_written_outside_gemms(plan) == []
    first, *rest = plan.kernels
    assert first.kind is Kind.ROW_REDUCTION and all(k.kind is Kind.GEMM for k in rest)
    (partial,) = [n for k in rest for n in k.steps if "tiles" in n.attr_map]
    writer = plan.writer(partial.name)
    assert writer is not None and writer.kind is Kind.GEMM and "s" in writer.writes
    (reader,) = [k for k in rest if partial.name in k.reads]
    assert reader.paired and "merge_mean_square" in reader.blocks


def test_nemotron_in_bf16_is_two_projections_and_one_squared_scale() -> None:
    plan = plan_of(read("nemotron_mlp"))
    assert kinds(plan) == ["gemm", "gemm"]
    up, down = plan.kernels
    assert [n.block.name for n in up.streamed] == ["row_mean_square"]
    (column,) = [w for w in up.writes if plan.type_of(w).layout is Layout.COLUMN]
    square = plan.graph.producers[column]
    assert square.block.name == "mul" and square.inputs[0] == square.inputs[1]
    assert down.blocks == ("linear", "mul") and column in down.reads
    assert plan.decisions == (
        f"{up.streamed[0].name}: taken in the kernel of {up.anchor.name}, which streams x",
    )


def test_nemotron_in_fp16_keeps_its_scale_in_the_first_projection() -> None:
    text = read("nemotron_mlp", dtype="fp16")
    result = rewrite(expand(parse(text)))
    refused = [e for e in result.refused if e.rule == "homogeneous_activation"]
    assert len(refused) == 1 and refused[0].precondition == "range"
    assert "fp16" in refused[0].reason
    plan = plan_of(text)
    up, down = _gemms(plan)
    assert up.blocks == ("linear", "mul", "squared_relu") and down.blocks == ("linear",)


@pytest.mark.parametrize("name", ["bert_layer", "minilm_layer", "minilm_last"])
def test_a_shared_norm_is_never_written(name: str) -> None:
    plan = plan_of(read(name))
    assert not any("h" in k.writes for k in plan.kernels)
    assert sum("h" in k.computed for k in plan.kernels) == 1
    assert "h: computed again by its readers, never stored" in plan.decisions
    final = next(k for k in plan.kernels if "y" in k.writes)
    assert final.kind is Kind.POINTWISE and final.writes == ("y",)


def test_minilm_layer_reads_its_last_norm_from_memory() -> None:
    plan = plan_of(read("minilm_layer"))
    assert plan.kernels[-1].reads == ("y", "w_qkv", "b_qkv"), "y is an output: it is stored anyway"


def test_minilm_embed_makes_its_first_norm_in_one_kernel() -> None:
    plan = plan_of(read("minilm_embed"))
    assert kinds(plan) == ["row_reduction", "gemm"]
    assert plan.kernels[0].writes == ("x",), "statistics that nobody else reads stay in registers"


def test_rmsnorm_qkv_scales_in_the_epilogue() -> None:
    plan = plan_of(read("rmsnorm_qkv"))
    assert kinds(plan) == ["row_reduction", "gemm"]
    assert plan.kernels[1].blocks == ("linear", "mul")


def test_gpt2_mlp_moves_its_mean_too() -> None:
    plan = plan_of(read("gpt2_mlp"))
    assert kinds(plan) == ["row_reduction", "gemm", "gemm"]
    statistics, up, _ = plan.kernels
    assert set(statistics.writes) == {"mean_1", "inv_rms_1"}
    assert "sub_outer" in up.blocks and up.anchor is not None and up.anchor.inputs[0] == "x"


def test_gpt2_mlp_in_fp32_keeps_its_mean_in_place_unless_asked() -> None:
    kept = plan_of(read("gpt2_mlp", dtype="fp32"))
    moved = plan_of(read("gpt2_mlp", dtype="fp32"), fp32_shift=True)
    assert len(_tiles_written_outside_gemms(kept)) == 1
    assert _tiles_written_outside_gemms(moved) == []


@pytest.mark.parametrize("name", SMALL)
def test_as_written_stores_what_its_projections_read(name: str) -> None:
    plan = plan_of(read(name), numerics="as_written")
    for kernel in _gemms(plan):
        assert kernel.streamed == ()
        assert kernel.anchor is not None and kernel.anchor.inputs[0] in plan.stored
