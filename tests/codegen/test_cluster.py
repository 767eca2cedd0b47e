"""Rows that clusters share: where they are, what is emitted and what it computes."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fusedsl
from fusedsl.codegen import cluster, emit
from fusedsl.fuse import Form, Plan
from fusedsl.ir import evaluate, random_inputs
from fusedsl.runtime import engine, planning
from fusedsl.runtime.binding import Binding
from fusedsl.runtime.build import build
from fusedsl.runtime.check import Dims
from fusedsl.runtime.planning import planned
from fusedsl.schedule import (
    Target,
    TileConfig,
    candidates,
    choose,
    pays_to_stay,
    problem,
    signature,
)
from fusedsl.schedule.cluster import cluster_bytes
from tests.codegen.gluon_model import Machine, Pointer
from tests.codegen.harness import arguments, calls_in, error, functions_in

SM_90 = Target.parse("sm_90")
RMS = """kernel norm(x: {t}[M, {n}], gain: weight {w}[{n}]) -> (y: {t}[M, {n}])
    {{ y = rms_norm(x, gain, eps=1e-6, cast=olmo2); }}"""
LAYER = """kernel norm(x: {t}[M, {n}], gain: weight {w}[{n}], shift: weight {w}[{n}])
    -> (y: {t}[M, {n}]) {{ y = layer_norm(x, gain, shift); }}"""
CHAIN = """kernel norm(x: {t}[M, {n}], c: {t}[M, 1], g: weight {w}[{n}], b: weight {w}[{n}])
    -> (y: {t}[M, {n}]) {{ y = relu(add(layer_norm(x * c * b, g), c, out_dtype={t})); }}"""
SUMS = """kernel norm(x: {t}[M, {n}]) -> (y: {t}[M, {n}])
    {{ y = add(rms_norm(x, eps=1e-6) + row_mean(x), row_sum(x * 2.0), out_dtype={t}); }}"""
SUMMED = """kernel k(x: {t}[M, {n}], r: {t}[M, {n}], g: weight {w}[{n}])
    -> (h: {t}[M, {n}], y: {t}[M, {n}]) {{ h = x + r; y = layer_norm(h, g); }}"""
SOFTMAX = "kernel k(x: {t}[M, {n}]) -> (y: {t}[M, {n}]) {{ y = softmax(x); }}"
GAINED = """kernel k(x: {t}[M, {n}], r: {t}[M, {n}], g: weight {w}[{n}]) -> (y: {t}[M, {n}])
    {{ y = mul(softmax(x * g + r), 3.0, out_dtype={t}); }}"""
RESIDUAL = """kernel k(x: {t}[M, {n}], r: {t}[M, {n}], g: weight fp32[{n}])
    -> (y: {t}[M, {n}], h: {t}[M, {n}])
    {{ h = x + r; y = rms_norm(h, g, eps=1e-6, cast=olmo2); }}"""
WIDE = """kernel k(x: {t}[M, {n}], r: fp32[M, {n}]) -> (y: {t}[M, {n}])
    {{ y = layer_norm(add(x, r, out_dtype={t})); }}"""
#: Bodies that take many registers.
STATES = """kernel k(x: {t}[M, {n}], r: {t}[M, {n}]) -> (y: {t}[M, {n}], z: {t}[M, {n}])
    {{ y = cast(layer_norm(x) + layer_norm(r) * row_mean(x * r) + layer_norm(gelu(x) + r)
                + rms_norm(x - r, eps=1e-6), dtype={t}); z = cast(x + row_sum(r), dtype={t}); }}"""
AFTER = """kernel k(x: {t}[M, {n}], g: weight fp32[{n}], b: weight fp32[{n}]) -> (y: {t}[M, {n}])
    {{ y = cast(gelu(layer_norm(x, g, b)), dtype={t}); }}"""
AHEAD = """kernel k(x: {t}[M, {n}], c: weight {w}[{n}], g: weight {w}[{n}], b: weight {w}[{n}])
    -> (y: {t}[M, {n}]) {{ y = layer_norm(gelu(x * c), g, b); }}"""
VECTORS = """kernel k(x: {t}[M, {n}], a: weight {w}[{n}], b: weight fp32[{n}], c: weight fp32[{n}])
    -> (y: {t}[M, {n}], z: {t}[M, {n}]) {{ h = gelu(x + a);
    s = row_sum(h * h * b) + row_mean(h * x); y = cast(silu(h * c) * s + sigmoid(x), dtype={t});
    z = cast(tanh(x * s), dtype={t}); }}"""
TWO = """kernel k(x: {t}[M, {n}]) -> (y: {t}[M, {n}], s: fp32[M, 1])
    {{ y = rms_norm(x, eps=1e-6); s = cast(row_mean(x), dtype=fp32); }}"""


def plan_of(form: str, n: int, t: str = "bf16", w: str = "bf16") -> Plan:
    return fusedsl.compile(form.format(n=n, t=t, w=w)).plan


def forms(
    form: str, n: int, rows: int = 4096, target: Target = SM_90, t: str = "bf16"
) -> set[Form]:
    return {kernel.form for kernel in planned(plan_of(form, n, t), {"M": rows}, target).kernels}


# where -----------------------------------------------------------------------------------------
FORM = pytest.mark.parametrize("form", [RMS, LAYER, CHAIN, SUMS, RESIDUAL, SUMMED, SOFTMAX, GAINED])


@FORM
@pytest.mark.parametrize("t", ["bf16", "fp16"])
@pytest.mark.parametrize("rows", [1, 17, 4096])
def test_clusters_share_long_rows(form: str, t: str, rows: int) -> None:
    for n in (65536, 128256, 131072, 262144):
        assert forms(form, n, rows, t=t) == {Form.CLUSTER}, n


@pytest.mark.parametrize(
    ("form", "w", "taken"),
    [
        (SOFTMAX, "bf16", True),
        (RMS, "bf16", True),
        (RESIDUAL, "bf16", True),
        (LAYER, "bf16", False),
        (RMS, "fp32", False),
    ],
)
def test_ten_programs_of_a_cluster_do_not_stay(form: str, w: str, taken: bool) -> None:
    """They would leave six of sixteen multiprocessors idle."""
    plan = planned(plan_of(form, 151936, w=w), {"M": 4096}, SM_90)
    (kernel,) = plan.kernels
    assert kernel.cluster == taken
    if taken:
        config = choose(plan, kernel, {"M": 4096}, SM_90, "specialised")
        assert (config.parts, config.programs) == (10, 0)


@pytest.mark.parametrize(
    ("form", "n"),
    [
        (RMS, 4096),
        (RMS, 32768),
        (LAYER, 32768),
        (SOFTMAX, 32768),
        (RMS, 40960),
        (SOFTMAX, 40960),
        (RMS, 131076),
        (RMS, 262152),
        (RMS, 1 << 20),
        (WIDE, 131072),
        (TWO, 131072),
    ],
)
def test_but_no_others(form: str, n: int) -> None:
    assert Form.CLUSTER not in forms(form, n)


def test_nor_rows_of_32_bits() -> None:
    assert forms(RMS, 131072, t="fp32") == {Form.TILED}


@pytest.mark.parametrize("w", ["bf16", "fp32"])
@pytest.mark.parametrize("tiles", [1, 2])
@pytest.mark.parametrize(
    "norm", ["rms_norm({v}, g, eps=1e-6)", "layer_norm({v}, g, b)", "softmax({v})"]
)
def test_all_norms_do(norm: str, tiles: int, w: str) -> None:
    made = norm.format(v="hx"[tiles % 2])
    vectors = f"g: weight {w}[{{n}}], b: weight {w}[{{n}}]"
    form = f"kernel k(x: {{t}}[M, {{n}}], {vectors}) -> (y: {{t}}[M, {{n}}])"
    if tiles == 2:
        form = form.replace("], g:", "], r: {t}[M, {n}], g:", 1)
        form = form.replace("(y:", "(h: {t}[M, {n}], y:")
    form += f" {{{{ {'h = x + r; ' if tiles == 2 else ''}y = cast({made}, dtype={{t}}); }}}}"
    for name in "gb":
        if f" {name}" not in made:
            form = form.replace(f", {name}: weight {w}[{{n}}]", "")
    for n in (65536, 131072, 262144):
        assert forms(form, n) == {Form.CLUSTER}, n


@pytest.mark.slow
@pytest.mark.parametrize("form", [STATES, AFTER, AHEAD, VECTORS])
@pytest.mark.parametrize("n", [128256])
def test_heavy_bodies_build_without_spills(form: str, n: int, tmp_path: Path) -> None:
    plan = planned(plan_of(form, n, "fp16", "fp16"), {"M": 4096}, SM_90)
    report = build(plan, [SM_90], {"M": 4096}, tmp_path)
    assert report.ok and not any(kernel.spills for kernel in report.kernels)
    for kernel, built in zip(plan.kernels, report.kernels, strict=True):
        # nothing else lies in shared memory: its addresses are counted from its start
        config = choose(plan, kernel, {"M": 4096}, SM_90, "specialised")
        assert built.shared_memory == cluster_bytes(plan, kernel, config)


@pytest.mark.parametrize("name", ["sm_80", "sm_89", "sm_100", "gfx942", "interpreter"])
def test_nor_on_other_targets(name: str) -> None:
    target = Target.interpreter() if name == "interpreter" else Target.parse(name)
    assert forms(LAYER, 131072, target=target) == {Form.TILED}


@pytest.mark.parametrize(
    ("pitch", "offset", "taken"),
    [(65536, 0, True), (65544, 8, True), (65540, 0, False), (65536, 4, False), (0, 0, False)],
)
def test_tensors_that_are_copied_in_whole_16_bytes(
    pitch: int, offset: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "target_of", lambda _: SM_90)
    program = fusedsl.compile(LAYER.format(n=65536, t="bf16", w="bf16"))
    memory = torch.empty(300 * max(pitch, 65536) + offset + 8, dtype=torch.bfloat16)
    memory = memory[-memory.data_ptr() % 16 // 2 :]
    x = memory[offset:].as_strided((300, 65536), (pitch, 1))
    given = [x, torch.empty(65537, dtype=x.dtype)[1:], torch.empty(65536, dtype=x.dtype)]
    names = [p.name for p in program.graph().params]
    found = program._engine.suited(
        Binding(program.plan, Dims()), names, given, {"M": 300}, torch.device("cpu")
    )
    assert [k.cluster for k in found.plan.kernels] == [taken]


# what ------------------------------------------------------------------------------------------
def shared(form: str, n: int, t: str = "bf16", w: str = "bf16") -> Plan:
    """The plan with its only kernel in this form, whatever its size."""
    plan = plan_of(form, n, t, w)
    (kernel,) = plan.kernels
    assert planning.can_share_in_cluster(plan, kernel)
    return replace(plan, kernels=(replace(kernel, form=Form.CLUSTER),))


@pytest.mark.parametrize(
    ("name", "form"), [("rms_norm", RMS), ("layer_norm", LAYER), ("softmax", SOFTMAX)]
)
def test_emitted_text(name: str, form: str, golden: Callable[[str, str], None]) -> None:
    text = emit(shared(form, 131072), main_loop="specialised").text
    golden(f"specialised/cluster_{name}.py", text)


@pytest.mark.parametrize("numerics", ["moved", "as_written"])
@FORM
def test_a_file_that_stands_alone(form: str, numerics: str) -> None:
    source = emit(shared(form, 131072), main_loop="specialised", numerics=numerics)
    tree = ast.parse(source.text)
    defined = functions_in(tree)
    assert calls_in(tree) <= defined | {"range", "min", "max", "float"}
    assert {k.name for k in source.kernels} <= defined
    assert "triton.jit" not in source.text


def test_configurations() -> None:
    rows = {"M": 4096}
    for form, n, stays in ((LAYER, 131072, True), (RMS, 262144, False), (RESIDUAL, 262144, True)):
        plan = shared(form, n)
        (kernel,) = plan.kernels
        assert pays_to_stay(plan, kernel) == stays
        default = choose(plan, kernel, rows, SM_90, "specialised")
        assert default.parts * default.block_n == n and default.stages == (
            1 if not stays else 3 if form is RESIDUAL else 4
        )
        assert default.programs == (132 // default.parts * default.parts if stays else 0)
        every = candidates(plan, kernel, rows, SM_90, "specialised")
        assert every[0] == default and len(every) > 1
        assert all(problem(plan, kernel, c, SM_90, "specialised") is None for c in every)
        for wrong in (
            {"stages": 9 if stays else 2},
            {"parts": default.parts - 1},
            {"parts": 17, "block_n": 16384},
            {"parts": 1, "block_n": n},
            {"block_n": 1024},
            {"block_m": 2},
            {"programs": 100 if stays else 132},
            {"sides": 2 if stays else 16},
            {"warps": 1},
            {"registers": 0} if stays else {"sides": 0},
        ):
            changed = replace(default, **wrong)
            assert problem(plan, kernel, changed, SM_90, "specialised"), (n, wrong)
        assert "no clusters" in str(
            problem(plan, kernel, default, Target.parse("sm_80"), "pointer")
        )
        (before,) = plan_of(form, n).kernels
        assert signature(plan, kernel) != signature(plan, before)


def test_large_clusters_need_a_whole_device() -> None:
    plan = shared(RMS, 262144)
    (kernel,) = plan.kernels
    part = replace(SM_90, sms=66)
    config = choose(plan, kernel, {"M": 9}, part, "specialised")
    assert "16 parts" in str(problem(plan, kernel, config, part, "specialised"))
    assert forms(RMS, 262144, target=part) == {Form.TILED}
    assert forms(RMS, 131072, target=part) == {Form.CLUSTER}


# what it computes ------------------------------------------------------------------------------
def computed(
    plan: Plan, inputs: dict[str, Any], config: TileConfig, numerics: str = "moved"
) -> dict[str, torch.Tensor]:
    """The outputs of the only kernel, by the model of Gluon."""
    source = emit(plan, main_loop="specialised", numerics=numerics)
    (kernel,) = source.kernels
    rows = len(inputs["x"])
    shape, dtype = (rows, inputs["x"].shape[1]), inputs["x"].dtype
    made = {n: torch.full(shape, float("nan"), dtype=dtype) for n in kernel.plan.writes}
    tensors = {**inputs, **made}
    args = [
        Pointer(arg) if isinstance(arg, torch.Tensor) else arg
        for arg in arguments(kernel, plan, config, tensors, rows)
    ]
    programs = config.programs or rows * config.parts
    Machine(source.text, programs, config.warps, config.parts).launch(kernel.name, args)
    return made


STAYS = pytest.mark.parametrize("stays", [False, True])


def configured(
    monkeypatch: pytest.MonkeyPatch, stays: bool, n: int, rows: int, stages: int = 4
) -> TileConfig:
    """A configuration for rows of 1024 or 2056 columns, in whichever way they are taken."""
    monkeypatch.setattr(cluster, "pays_to_stay", lambda *_: stays)
    block, parts = (512, 2) if n == 1024 else (1024, 3)
    warps = block // 512
    if stays:
        programs = min(2, rows) * parts
        return TileConfig(1, block, warps=warps, stages=stages, parts=parts, programs=programs)
    return TileConfig(1, block, warps=warps, parts=parts, sides=1 if n == 1024 else 2)


@pytest.mark.parametrize(("stages", "rows"), [(2, 12), (3, 1), (5, 5)])
@pytest.mark.parametrize("n", [1024, 2056])
@STAYS
@FORM
def test_what_it_computes(
    form: str, n: int, rows: int, stages: int, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = shared(form, n, "bf16", "fp32" if stages == 3 or rows == 12 else "bf16")
    graph = plan.graph
    inputs = random_inputs(graph, {"M": rows}, seed=rows)
    exact = evaluate(graph, inputs)
    pitched = torch.full((rows, n + 8), float("nan"), dtype=inputs["x"].dtype)
    pitched[:, :n] = inputs["x"]
    inputs["x"] = pitched[:, :n]
    config = configured(monkeypatch, stays, n, rows, stages)
    numerics, bound = ("as_written", 16e-3) if rows == 5 else ("moved", 4e-3)
    for name, got in computed(plan, inputs, config, numerics).items():
        assert error(got, exact[name]) < bound, name


@pytest.mark.parametrize("rows", [1, 7])
@STAYS
@FORM
def test_rows_from_the_last_to_the_first(
    form: str, stays: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = shared(form, 2056)
    turned = replace(plan, kernels=(replace(plan.kernels[0], backwards=True),))
    config = configured(monkeypatch, stays, 2056, rows)
    inputs = random_inputs(plan.graph, {"M": rows}, seed=rows)
    forwards, backwards = computed(plan, inputs, config), computed(turned, inputs, config)
    assert "last = M - 1 - group" in emit(turned, main_loop="specialised").text
    for name, exact in evaluate(plan.graph, inputs).items():
        assert torch.equal(forwards[name], backwards[name]), name
        assert error(backwards[name], exact) < 4e-3, name


@pytest.mark.parametrize("backwards", [False, True])
@FORM
def test_clusters_without_a_row(
    form: str, backwards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = shared(form, 1024)
    plan = replace(plan, kernels=(replace(plan.kernels[0], backwards=backwards),))
    inputs = random_inputs(plan.graph, {"M": 2}, seed=0)
    config = replace(configured(monkeypatch, True, 1024, 2), programs=8)
    exact = evaluate(plan.graph, inputs)
    for name, got in computed(plan, inputs, config).items():
        assert error(got, exact[name]) < 4e-3, name


@STAYS
def test_infinities_in_a_softmax(stays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = shared(SOFTMAX, 2056)
    x = random_inputs(plan.graph, {"M": 6}, seed=0)["x"]
    inf = float("inf")
    x[0, 600:] = -inf  # parts that hold nothing else
    x[1, :8], x[2, 700], x[3, 2055], x[4] = -inf, inf, float("nan"), -inf
    config = configured(monkeypatch, stays, 2056, 6)
    got, exact = computed(plan, {"x": x}, config)["y"], evaluate(plan.graph, {"x": x})["y"]
    for row in (0, 1, 5):
        assert error(got[row], exact[row]) < 4e-3, row
    assert got[2:5].isnan().all()


# names -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name", ["column_maxima", "larger", "over_columns", "late", "told", "own", "start", "none"]
)
def test_names_of_users_do_not_hide_those_of_the_skeleton(name: str) -> None:
    text = f"kernel k({name}: bf16[M, 131072]) -> (y: bf16[M, 131072]) {{ y = softmax({name}); }}"
    plan = planned(fusedsl.compile(text).plan, {"M": 4096}, SM_90)
    tree = ast.parse(emit(plan, main_loop="specialised").text)
    functions = functions_in(tree)
    stored = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    assert functions and not functions & stored


@pytest.mark.parametrize("name", ["parts", "state0"])
def test_nor_what_is_read_of_other_parts(name: str) -> None:
    """A tile that is called as a state would be."""
    tile = "row_mean_square_1_state0" + ("" if name == "state0" else f"_{name}")
    form = f"""kernel k(x: {{t}}[M, {{n}}], {tile}: {{t}}[M, {{n}}]) -> (y: {{t}}[M, {{n}}])
        {{{{ y = rms_norm(x + {tile}, eps=1e-6); }}}}"""
    text = emit(shared(form, 131072), main_loop="specialised").text
    assert f" {tile} = widen(" in text
    assert f" {tile} = states_at(" not in text and f" {tile} = warp_sums(" not in text
