"""Specialised projections on a GPU: every tail, every dtype, hard rows, and again and again."""

from __future__ import annotations

import pytest
import torch

import fusedsl
from fusedsl.ir import evaluate
from fusedsl.runtime import planning
from tests.codegen.harness import (
    ON_HOPPER,
    check,
    check_repeats,
    error,
    inputs_of,
    planned_on_gpu,
    run,
)

pytestmark = ON_HOPPER

FORMS = {
    "linear": """kernel k(x: {t}[M, {k}], g: weight {t}[{k}], w: weight {t}[{n}, {k}])
        -> (y: {t}[M, {n}]) {{ y = linear(rms_norm(x, g, eps=1e-6), w); }}""",
    "swiglu": """kernel k(x: {t}[M, {k}], g: weight {t}[{k}], w: weight {t}[{n2}, {k}])
        -> (y: {t}[M, {n}]) {{ y = swiglu(linear(rms_norm(x, g, eps=1e-6), w)); }}""",
    "reglu": """kernel k(x: {t}[M, {k}], w: weight {t}[{n2}, {k}]) -> (y: {t}[M, {n}])
        {{ y = reglu(linear(rms_norm(x, eps=1e-6), w)); }}""",
    "bias": """kernel k(x: {t}[M, {k}], g: weight {t}[{k}], w: weight {t}[{n}, {k}],
        b: weight {t}[{n}]) -> (y: {t}[M, {n}])
        {{ y = silu(linear(rms_norm(x, g, eps=1e-6), w, b)); }}""",
    "residual": """kernel k(x: {t}[M, {k}], z: {t}[M, {n}], w: weight {t}[{n}, {k}])
        -> (y: {t}[M, {n}]) {{ y = linear(x, w) + z; }}""",
    "gated residual": """kernel k(x: {t}[M, {k}], z: {t}[M, {n}], w: weight {t}[{n2}, {k}],
        b: weight {t}[{n2}]) -> (y: {t}[M, {n}]) {{ y = swiglu(linear(x, w, b)) + z; }}""",
    "normed residual": """kernel k(x: {t}[M, {k}], z: {t}[M, {n}], w: weight {t}[{n}, {k}])
        -> (y: {t}[M, {n}]) {{ y = linear(rms_norm(x, eps=1e-6), w) * 0.5 + z; }}""",
    "two of them": """kernel k(x: {t}[M, {k}], z: {t}[M, {n}], w: weight {t}[{n}, {k}],
        g: weight {t}[{n}], v: weight {t}[{n}, {n}]) -> (y: {t}[M, {n}])
        {{ s = linear(rms_norm(x, eps=1e-6), w) + z; y = silu(linear(rms_norm(s, g), v)) + s; }}""",
}
FORM = pytest.mark.parametrize("form", FORMS)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Specialise wherever it can be done."""
    monkeypatch.setattr(planning, "pays", lambda *_: True)
    monkeypatch.setattr(planning, "fills", lambda *_: True)


def text_of(form: str, k: int = 136, n: int = 264, t: str = "bf16") -> str:
    return FORMS[form].format(t=t, k=k, n=n, n2=2 * n)


def is_specialised(program: fusedsl.Program, rows: int) -> bool:
    return all(kernel.specialised for kernel in planned_on_gpu(program, rows).kernels)


@pytest.mark.parametrize("sizes", [(64, 8), (128, 520), (200, 264), (1000, 2880), (2048, 4104)])
@pytest.mark.parametrize("rows", [65, 100, 1000, 4097])
@FORM
def test_tails(form: str, rows: int, sizes: tuple[int, int]) -> None:
    program = fusedsl.compile(text_of(form, *sizes))
    assert is_specialised(program, rows)
    check(program, inputs_of(program.graph(), seed=rows, M=rows))


@FORM
def test_fp16(form: str) -> None:
    program = fusedsl.compile(text_of(form, 1000, 2880, "fp16"))
    check(program, inputs_of(program.graph(), M=1000))


@FORM
def test_as_written(form: str) -> None:
    """Every rounding that the program has is kept, or the statistic is not taken along."""
    program = fusedsl.compile(text_of(form, 1000, 520), numerics="as_written")
    check(program, inputs_of(program.graph(), M=300))


@FORM
def test_hard_rows_stay_by_themselves(form: str) -> None:
    program = fusedsl.compile(text_of(form, 1000, 520))
    inputs = inputs_of(program.graph(), M=700)
    plain = run(program, inputs)["y"]
    x = inputs["x"]
    hard = {5: float("nan"), 70: float("inf"), 130: -float("inf"), 699: float("nan")}
    for row, value in hard.items():
        x[row, row % 1000] = value
    x[200] = 0.0
    x[201] *= 1e16
    x[202] *= 1e-18
    x[203, 999] = 3e4
    if not form.startswith("normed") and "residual" in form:
        x[201] /= 1e16  # a product of no norm may be as large as it is
    got, exact = run(program, inputs)["y"], evaluate(program.graph(), inputs)["y"]
    for row in range(700):
        if row in hard:
            assert not got[row][~exact[row].isfinite()].isfinite().any(), row
        elif 200 <= row <= 203:
            assert got[row].isfinite().all(), row
            assert error(got[row], exact[row]) < 8e-3, row
        else:
            assert torch.equal(got[row], plain[row]), row


@FORM
def test_repeats_bit_by_bit(form: str) -> None:
    program = fusedsl.compile(text_of(form, 768, 3072))
    check_repeats(program, inputs_of(program.graph(), M=5000))


def test_rows_with_a_pitch_and_rows_that_no_tensor_map_expresses() -> None:
    program = fusedsl.compile(text_of("linear"))
    inputs = inputs_of(program.graph(), M=300)
    x, others = inputs["x"], [t for n, t in inputs.items() if n != "x"]
    exact = evaluate(program.graph(), inputs)["y"]
    for pitch in (144, 137):
        wide = torch.full((300, pitch), float("nan"), dtype=x.dtype, device="cuda")
        wide[:, :136] = x
        with torch.no_grad():
            assert error(program(wide[:, :136], *others), exact) < 5e-3, pitch
    odd = fusedsl.compile(text_of("linear", 132, 264))
    check(odd, inputs_of(odd.graph(), M=300))


@FORM
def test_in_a_cuda_graph(form: str) -> None:
    program = fusedsl.compile(text_of(form, 768, 1536))
    inputs = inputs_of(program.graph(), M=1500)
    given = list(inputs.values())
    with torch.no_grad():
        first = program(*given).clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = program(*given)
    given[0].copy_(given[0].flip(0))
    with torch.no_grad():
        expected = program(*given)
    captured.fill_(float("nan"))
    graph.replay()
    assert torch.equal(captured, expected) and not torch.equal(first, expected)
