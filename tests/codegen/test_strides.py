"""Rows whose stride is a compile-time number, which tells what may be moved at a time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import fusedsl
from fusedsl.codegen import emit
from fusedsl.ir import evaluate
from fusedsl.runtime.build import build
from fusedsl.schedule import Target
from tests.codegen.harness import CUDA, DEVICE, check, error, inputs_of, run

NORM = """kernel k(x: {t}[M, {n}], g: weight {t}[{n}]) -> (y: {t}[M, {n}])
    {{ y = rms_norm(x, g, eps=1e-6, cast=olmo2); }}"""
RESIDUAL = """kernel k(x: {t}[M, {n}], r: {t}[M, {n}]) -> (y: {t}[M, {n}])
    {{ y = layer_norm(x + r); }}"""
SCALED = "kernel k(x: {t}[M, {n}]) -> (y: {t}[M, {n}]) {{ y = gelu(x); }}"
FORMS = pytest.mark.parametrize("form", [NORM, RESIDUAL, SCALED])


def program(form: str, n: int | str, t: str = "bf16") -> fusedsl.Program:
    return fusedsl.compile(form.format(n=n, t=t))


def roles(made: fusedsl.Program) -> set[str]:
    """How the strides of its kernels are given."""
    args = [arg for kernel in emit(made.plan).kernels for arg in kernel.args]
    return {arg.role for arg in args if arg.role.endswith("stride")}


@pytest.mark.parametrize(
    ("n", "role"),
    [(1000, "fixed_stride"), (1002, "fixed_stride"), (1001, "stride"), (1008, "stride")],
)
@FORMS
def test_where(form: str, n: int, role: str) -> None:
    assert roles(program(form, n)) == {role}


@FORMS
def test_not_where_columns_are_known_at_the_call_alone(form: str) -> None:
    assert roles(program(form.replace("g: weight {t}[{n}]", "g: weight {t}[D]"), "D")) == {"stride"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "n"), [(NORM, 1000), (NORM, 40008), (RESIDUAL, 5000), (SCALED, 1000)]
)
def test_as_many_columns_at_a_time_as_of_rows_of_whole_lines(
    form: str, n: int, tmp_path: Path
) -> None:
    """Instructions that move values of global memory, in what is compiled for sm_80."""
    moved = []
    for columns in (n, -(-n // 64) * 64):
        report = build(program(form, columns).plan, [Target.parse("sm_80")], {"M": 64}, tmp_path)
        assert report.ok
        files = [Path(f) for kernel in report.kernels for f in kernel.files]
        text = "".join(f.read_text() for f in files if f.suffix == ".ptx")
        moved.append(set(re.findall(r"\b(?:ld|st)\.global[.\w:]*?(?:\.v\d)?\.b\d+", text)))
        assert moved[-1]
    assert moved[0] == moved[1] and not all(name.endswith(".b16") for name in moved[0])


@pytest.mark.parametrize("n", [1000, 1002, 5000])
@FORMS
def test_what_it_computes(form: str, n: int) -> None:
    made = program(form, n)
    check(made, inputs_of(made.graph(), M=5))


@pytest.mark.parametrize(
    "gpu",
    [
        False,
        pytest.param(True, marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no GPU")]),
    ],
)
@FORMS
def test_rows_of_any_pitch(form: str, gpu: bool) -> None:
    """A call with another stride is another specialisation: it takes nothing of the first."""
    n, rows = 1000, 7
    made = program(form, n)
    inputs = inputs_of(made.graph(), M=rows)
    exact = evaluate(made.graph(), inputs)
    x = inputs["x"]
    for pitch, offset in ((n, 0), (1008, 0), (1003, 0), (1001, 1), (1016, 8), (n, 3), (n, 0)):
        memory = torch.full((rows * pitch + offset,), float("nan"), dtype=x.dtype, device=DEVICE)
        view = memory[offset:].as_strided((rows, n), (pitch, 1))
        view.copy_(x)
        for name, got in run(made, inputs | {"x": view}).items():
            assert error(got, exact[name]) < 4e-3, (pitch, offset, name)
    shared = inputs | {"x": x[:1].expand(rows, n)}
    exact = evaluate(made.graph(), shared)
    for name, got in run(made, shared).items():
        assert error(got, exact[name]) < 4e-3, name
