"""Projections of few rows: weights stream once, K is shared, statistics are taken in the kernel."""

from __future__ import annotations

import re

import pytest
import torch

import fusedsl
from examples import SMALL, read
from fusedsl.codegen import emit
from fusedsl.fuse import FEW_ROWS, for_few_rows
from fusedsl.ir import Kind
from fusedsl.runtime.planning import planned
from fusedsl.schedule import Target, choose
from tests.codegen.harness import LOOPS, check, compiled, inputs_of, run
from tests.fuse.harness import plan_of

ROWS = (1, 3, 16, 17, 64)
TARGETS = [*map(Target.parse, Target.names()), Target.interpreter()]
EACH_LOOP = pytest.mark.parametrize("loop", LOOPS)

MLP = """
kernel mlp(x: {t}[M, {k}], gain: weight {t}[{k}], w: weight {t}[{f2}, {k}],
           v: weight {t}[{k}, {f}]) -> (y: {t}[M, {k}]) {{
  y = linear(swiglu(linear(rms_norm(x, gain, eps=1e-6), w)), v) + x;
}}
"""
LAYER = """
kernel layer(x: {t}[M, {k}], gain: weight {t}[{k}], shift: weight {t}[{k}],
             w: weight {t}[{k}, {f}], b: weight {t}[{f}], v: weight {t}[{f}, {k}],
             c: weight {t}[{k}]) -> (y: {t}[M, {k}]) {{
  y = matmul(gelu(matmul(layer_norm(x, gain, shift), w) + b), v) + c + x;
}}
"""


def text_of(form: str, dtype: str = "bf16", k: int = 136, f: int = 264) -> str:
    """A program in which neither K nor N is a multiple of any tile."""
    return form.format(t=dtype, k=k, f=f, f2=2 * f)


def splits(program, rows: int) -> list[int]:
    """How many programs share a tile's K, kernel by kernel, in the interpreter."""
    env = {"M": rows}
    target = Target.interpreter()
    plan = planned(program.plan, env, target)
    return [choose(plan, k, env, target, "tma").split for k in plan.kernels]


@EACH_LOOP
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("form", [MLP, LAYER], ids=["mlp", "layer"])
def test_rows_and_shared_k(form: str, rows: int, loop: str) -> None:
    program = compiled(text_of(form), loop)
    assert splits(program, rows) == [1, 2]
    check(program, inputs_of(program.graph(), seed=rows, M=rows))


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_dtypes(dtype: str) -> None:
    for form in (MLP, LAYER):
        program = compiled(text_of(form, dtype))
        check(program, inputs_of(program.graph(), M=5))


@EACH_LOOP
@pytest.mark.parametrize(("k", "f"), [(1, 1), (7, 33), (65, 130), (200, 24)])
def test_shapes_that_divide_nothing(k: int, f: int, loop: str) -> None:
    for form in (MLP, LAYER):
        program = compiled(text_of(form, k=k, f=f), loop)
        check(program, inputs_of(program.graph(), M=3))


@pytest.mark.parametrize("name", SMALL)
def test_examples(name: str) -> None:
    program = compiled(read(name, small=True))
    check(program, inputs_of(program.graph(), M=2))


def test_calls_repeat_bit_for_bit() -> None:
    """Counters of shared sums are as they were when a call has ended: the next one finds zeros."""
    program = compiled(text_of(MLP))
    inputs = inputs_of(program.graph(), M=4)
    first = run(program, inputs)["y"]
    for _ in range(3):
        assert torch.equal(run(program, inputs)["y"], first)


def test_a_row_alone_and_among_others() -> None:
    """numerics_47 within a row class: a row's result does not depend on its neighbours."""
    program = compiled(text_of(MLP))
    inputs = inputs_of(program.graph(), M=16)
    whole = run(program, inputs)["y"]
    alone = run(program, {**inputs, "x": inputs["x"][5:6].clone()})["y"]
    assert torch.equal(alone[0], whole[5])


def test_the_number_of_kernels() -> None:
    program = compiled(text_of(MLP))
    for rows, kernels in ((1, 2), (FEW_ROWS, 2), (FEW_ROWS + 1, 3)):
        inputs = inputs_of(program.graph(), M=rows)
        bound = program.bind({n: t for n, t in inputs.items() if n != "x"})
        bound(inputs["x"])
        assert len(list(bound._binding.recipes.values())[-1].kernels) == kernels


def test_the_source_of_few_rows() -> None:
    program = compiled(text_of(MLP))
    assert "gather_parts" in program.source_for("tma", few_rows=True)
    assert "gather_parts" not in program.source_for("tma")


# plans -------------------------------------------------------------------------------------------
def kinds(text: str) -> list[Kind]:
    return [kernel.kind for kernel in for_few_rows(plan_of(text)).kernels]


@pytest.mark.parametrize("name", ["rmsnorm_qkv", "llama_mlp"])
def test_a_plan_for_few_rows_is_not_planned_again(name: str) -> None:
    plan = for_few_rows(plan_of(read(name)))
    assert any(kernel.recomputed for kernel in plan.kernels)
    assert for_few_rows(plan) is plan
    engine = fusedsl.compile(read(name))._engine.planned({"M": 16})
    assert engine.planned({"M": 16}) is engine


def test_a_statistic_that_is_an_output_is_stored() -> None:
    text = """kernel k(x: bf16[M, 64], w: weight bf16[32, 64])
        -> (y: fp32[M, 32], s: fp32[M, 1]) {
      s = row_mean_square(x); y = linear(x, w) * inv_rms(s, eps=1e-6); }"""
    plan = plan_of(text)
    assert [k.kind for k in for_few_rows(plan).kernels] == [k.kind for k in plan.kernels]
    program = compiled(text)
    check(program, inputs_of(program.graph(), M=3))


def test_a_statistic_of_something_else_is_stored() -> None:
    """The scale is that of z, and the projection streams x."""
    text = """kernel k(x: bf16[M, 64], z: bf16[M, 64], w: weight bf16[32, 64]) -> (y: fp32[M, 32]) {
      y = linear(x, w) * inv_rms(row_mean_square(z), eps=1e-6); }"""
    assert Kind.ROW_REDUCTION in kinds(text)
    program = compiled(text)
    check(program, inputs_of(program.graph(), M=3))


def test_a_statistic_read_outside_projections_is_stored() -> None:
    text = """kernel k(x: bf16[M, 64], w: weight bf16[32, 64])
        -> (y: fp32[M, 32], z: fp32[M, 64]) {
      s = inv_rms(row_mean_square(x), eps=1e-6); y = linear(x, w) * s; z = x * s; }"""
    assert Kind.ROW_REDUCTION in kinds(text)
    program = compiled(text)
    check(program, inputs_of(program.graph(), M=3))


def test_the_norm_goes_into_every_projection_that_reads_it() -> None:
    text = """kernel k(x: bf16[M, 64], g: weight bf16[64], w: weight bf16[32, 64],
                       v: weight bf16[48, 64]) -> (y: bf16[M, 32], z: bf16[M, 48]) {
      h = rms_norm(x, g); y = linear(h, w); z = linear(h, v); }"""
    assert kinds(text) == [Kind.GEMM, Kind.GEMM]


# emitted kernels ---------------------------------------------------------------------------------
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", SMALL)
def test_nothing_is_read_or_written_before_the_wait(name: str, loop: str) -> None:
    """A kernel that starts early may only ask for lines of the cache until it has waited."""
    plan = for_few_rows(plan_of(read(name)))
    text = emit(plan, main_loop=loop).text
    kernels = text.split('@triton.jit(do_not_specialize=["M"])')[1:]
    awaiting = [k for k in kernels if "PDL: tl.constexpr" in k]
    assert len(awaiting) == sum(k.few_rows for k in plan.kernels)
    for kernel in awaiting:
        early = kernel.split("await_earlier()")[0]
        assert not re.search(r"\.load\(|\.store\(|atomic|gather_parts\(", early)
        assert kernel.count("await_earlier()") == 1


@pytest.mark.parametrize(
    "target", [*map(Target.parse, Target.names()), Target.interpreter()], ids=str
)
@pytest.mark.parametrize("rows", [1, 16, 17, 64])
@pytest.mark.parametrize("name", SMALL)
def test_configurations(name: str, rows: int, target: Target) -> None:
    env = {"M": rows}
    plan = for_few_rows(plan_of(read(name)))
    for index, kernel in enumerate(k for k in plan.kernels if k.few_rows):
        for loop in ("tma", "pointer") if target.main_loop == "tma" else ("pointer",):
            config = choose(plan, kernel, env, target, loop).on(target)
            assert config.block_m >= rows and config.sides == 1 and config.programs == 0
            assert config.split >= 1 and (index or config.split == 1)
            assert not config.ahead or config.pdl
            assert not config.pdl or target.has_pdl
            held = config.stages * (config.block_m + config.block_n) * config.block_k * 2
            assert held <= target.shared_limit
