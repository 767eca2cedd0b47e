"""Specialised projections: what is emitted of them, and what cannot be."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from fusedsl.codegen import can_specialise, emit
from fusedsl.codegen.kernels import COLUMNS
from fusedsl.fuse import Form, KernelPlan, Plan, can_go, left_sums, readers, without, without_sums
from fusedsl.ir import Kind
from fusedsl.runtime.build import build
from fusedsl.runtime.planning import planned
from fusedsl.schedule import Target
from tests.codegen.harness import calls_in, functions_in
from tests.fuse.harness import plan_of

QKV = """kernel normed(x: bf16[M, 2048], g: weight bf16[2048], w: weight bf16[3072, 2048])
    -> (qkv: bf16[M, 3072]) { qkv = linear(rms_norm(x, g), w); }"""
BLOCK = """kernel block(x: bf16[M, 256], z: bf16[M, 256], w: weight bf16[256, 256],
    g: weight bf16[256], v: weight bf16[512, 256], b: weight bf16[512]) -> (y: bf16[M, 256]) {
  s = linear(x, w) + z; y = swiglu(linear(rms_norm(s, g), v, b)) + s; }"""


def specialised(text: str) -> Plan:
    """A plan all of whose projections are specialised."""
    plan = plan_of(text)
    plan = without_sums(plan, list(left_sums(plan)), Form.SPECIALISED)
    gone = [k for k in plan.kernels if can_go(plan, k)]
    assert all(readers(plan, k) for k in gone)
    projections = [k for k in plan.kernels if k.kind is Kind.GEMM]
    assert all(can_specialise(plan, k) for k in projections)
    return without(plan, gone, Form.SPECIALISED, projections)


@pytest.mark.parametrize(("name", "text"), [("normed", QKV), ("block", BLOCK)])
def test_emitted_text(name: str, text: str, golden: Callable[[str, str], None]) -> None:
    golden(f"specialised/{name}.py", emit(specialised(text), main_loop="specialised").text)


@pytest.mark.parametrize("numerics", ["moved", "as_written"])
@pytest.mark.parametrize("text", [QKV, BLOCK])
def test_a_file_that_stands_alone(text: str, numerics: str) -> None:
    source = emit(specialised(text), main_loop="specialised", numerics=numerics)
    tree = ast.parse(source.text)
    defined = functions_in(tree)
    known = {"range", "min", "fence_async_shared"}
    known |= {"warpgroup_mma", "warpgroup_mma_init", "warpgroup_mma_wait"}
    assert calls_in(tree) <= defined | known
    assert {k.name for k in source.kernels} <= defined
    assert "triton.jit" not in source.text
    long = [n for n in source.text.split("\n") if len(n) > COLUMNS and "  # " not in n]
    assert not long, "but for comments that quote the program"


def test_the_other_files_are_without_them() -> None:
    plan = specialised(BLOCK)
    assert emit(plan, main_loop="tma").kernels == ()
    assert len(emit(plan, main_loop="specialised").kernels) == len(plan.kernels) == 2


HEAD = "kernel k(x: {t}[M, 64], z: {z}[M, 32], w: weight {t}[{w}]) -> ({out}) {{ {body} }}"
ADDED = {"t": "bf16", "z": "bf16", "w": "32, 64", "out": "y: bf16[M, 32]"}


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        ("y = linear(x, w) + z;", {"t": "fp32", "z": "fp32", "out": "y: fp32[M, 32]"}),
        ("y = matmul(x, w) + z;", {"w": "64, 32"}),
        ("y = add(linear(x, w), z, out_dtype=fp32);", {"out": "y: fp32[M, 32]"}),
        ("y = add(linear(x, w), z, out_dtype=bf16);", {"z": "fp16"}),
        ("y = linear(x, w) + z; u = silu(y);", {"out": "y: bf16[M, 32], u: bf16[M, 32]"}),
    ],
    ids=["fp32", "weights [K, N]", "an fp32 result", "another type", "two results"],
)
def test_what_cannot_be_specialised(body: str, changes: dict[str, str]) -> None:
    plan = plan_of(HEAD.format(body=body, **{**ADDED, **changes}))
    projections = [k for k in plan.kernels if k.kind is Kind.GEMM]
    assert projections and not any(can_specialise(plan, k) for k in projections)


def test_what_can() -> None:
    plan = plan_of(HEAD.format(body="y = linear(x, w) + z;", **ADDED).replace("bf16", "fp16"))
    assert all(can_specialise(plan, k) for k in plan.kernels)


LOSS = """kernel head(x: bf16[M, 2048], g: weight bf16[2048], w: weight bf16[50304, 2048],
    target: i64[M]) -> (loss: fp32[M, 1]) {
  loss = cross_entropy(softcap(linear(rms_norm(x, g), w), cap=30), target); }"""
NORM_NEXT = """kernel k(x: bf16[M, 3072], z: bf16[M, 768], w: weight bf16[768, 3072],
    g: weight bf16[768], v: weight bf16[1024, 768]) -> (h: bf16[M, 768], y: bf16[M, 1024])
    { h = linear(x, w) + z; y = linear(layer_norm(h, g), v); }"""
GELU_NEXT = NORM_NEXT.replace("linear(layer_norm(h, g), v)", "gelu(linear(layer_norm(h, g), v))")
#: Tiles of which each of two groups has many.
GELU_NEXT = GELU_NEXT.replace("1024", "3072")
STATES = pytest.mark.parametrize(
    ("text", "left"),
    [
        (LOSS, {"maxima_1", "sums_1"}),
        (NORM_NEXT, {"mean_2", "m2_1"}),
        (GELU_NEXT, {"mean_2", "m2_1"}),
    ],
    ids=["loss", "norm_next", "gelu_next"],
)
SM_90 = Target.parse("sm_90")


def leaving(text: str) -> tuple[Plan, KernelPlan]:
    """The plan that runs, and its projection that leaves states."""
    plan = planned(plan_of(text), {"M": 16384}, SM_90)
    (kernel,) = (k for k in plan.kernels if k.states_left)
    return plan, kernel


@STATES
def test_states_of_tiles(text: str, left: set[str]) -> None:
    plan, kernel = leaving(text)
    assert kernel.form is Form.SPECIALISED and kernel.states_left == left
    assert kernel.states_left <= set(kernel.writes)
    emitted = emit(plan, main_loop="specialised")
    assert kernel.name in [source.name for source in emitted.kernels]
    assert ("staged0" in emitted.text) == (text is not LOSS)
    tree = ast.parse(emitted.text)
    defined = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    assert len(set(defined)) == len(defined)
    assert ("max_of_rows" in defined) == (text is LOSS) and "in_chains" not in defined


def test_the_text_of_a_head(golden: Callable[[str, str], None]) -> None:
    golden("specialised/head.py", emit(leaving(LOSS)[0], main_loop="specialised").text)


def test_states_where_tiles_are_few() -> None:
    assert not any(k.specialised for k in planned(plan_of(NORM_NEXT), {"M": 512}, SM_90).kernels)


@pytest.mark.parametrize(
    ("text", "form"),
    [(NORM_NEXT, Form.SPECIALISED), (GELU_NEXT, Form.IN_TURN)],
    ids=["light", "heavy"],
)
def test_states_that_are_merged(text: str, form: Form) -> None:
    plan = planned(plan_of(text), {"M": 16384}, SM_90)
    (kernel,) = (k for k in plan.kernels if k.states_merged)
    assert kernel.form is form and kernel.states_merged == {"mean_2", "m2_1"}
    assert plan.tiles_read(kernel) == ()
    assert "moments_merge_all(" in emit(plan, main_loop="specialised").text


@pytest.mark.slow
@STATES
def test_states_fit_hopper_without_spills(text: str, left: set[str], tmp_path: Path) -> None:
    built = build(plan_of(text), [SM_90], {"M": 16384}, tmp_path)
    assert all(kernel.error is None and kernel.spills == 0 for kernel in built.kernels)
