"""Projections by two groups in turn on a GPU: every tail, every dtype, hard rows, any number of
tiles, and again and again."""

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

#: No columns, one, two; row vectors of the weight's dtype and of fp32.
FORMS = {
    "none": """kernel k(x: {t}[M, {k}], w: weight {t}[{n}, {k}]) -> (y: {t}[M, {n}])
        {{ y = gelu(linear(x, w), approximate=tanh); }}""",
    "erf": """kernel k(x: {t}[M, {k}], w: weight {t}[{n}, {k}], b: weight {t}[{n}])
        -> (y: {t}[M, {n}]) {{ y = gelu(linear(x, w, b)); }}""",
    "rms": """kernel k(x: {t}[M, {k}], g: weight {t}[{k}], w: weight {t}[{n}, {k}],
        b: weight {t}[{n}]) -> (y: {t}[M, {n}])
        {{ y = silu(linear(rms_norm(x, g, eps=1e-6), w, b)); }}""",
    "layer": """kernel k(x: {t}[M, {k}], g: weight {t}[{k}], s: weight {t}[{k}],
        w: weight {t}[{n}, {k}], b: weight {t}[{n}]) -> (y: {t}[M, {n}])
        {{ y = gelu(linear(layer_norm(x, g, s), w, b), approximate=tanh); }}""",
}
FORM = pytest.mark.parametrize("form", FORMS)
NORMED = pytest.mark.parametrize("form", ["rms", "layer"])


@pytest.fixture(autouse=True)
def in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take tiles in turn wherever it can be done."""
    monkeypatch.setattr(planning, "pays", lambda *_: False)
    monkeypatch.setattr(planning, "pays_in_turn", lambda *_: True)


def compiled(
    form: str, k: int = 136, n: int = 264, t: str = "bf16", numerics: str = "moved"
) -> fusedsl.Program:
    return fusedsl.compile(FORMS[form].format(t=t, k=k, n=n), numerics=numerics)


def is_in_turn(program: fusedsl.Program, rows: int) -> bool:
    return any(kernel.in_turn for kernel in planned_on_gpu(program, rows).kernels)


@pytest.mark.parametrize("sizes", [(64, 8), (136, 264), (1000, 2880)])
@pytest.mark.parametrize("rows", [65, 100, 1000, 4097])
@FORM
def test_tails(form: str, rows: int, sizes: tuple[int, int]) -> None:
    program = compiled(form, *sizes)
    assert is_in_turn(program, rows)
    check(program, inputs_of(program.graph(), seed=rows, M=rows))


@pytest.mark.parametrize("steps", [1, 5, 6])
@pytest.mark.parametrize("tiles", [1, 2, 3, 131, 132, 133, 264, 265, 397])
def test_numbers_of_tiles(tiles: int, steps: int) -> None:
    """Groups have as many tiles or one more than the other, or none; K is shorter or longer than
    the ring."""
    program = compiled("layer", 64 * steps, 128)
    check(program, inputs_of(program.graph(), M=128 * tiles - 3))


@FORM
def test_fp16(form: str) -> None:
    program = compiled(form, 1000, 2880, "fp16")
    check(program, inputs_of(program.graph(), M=1000))


@FORM
def test_as_written(form: str) -> None:
    program = compiled(form, 1000, 520, numerics="as_written")
    check(program, inputs_of(program.graph(), M=300))


@NORMED
def test_hard_rows_stay_by_themselves(form: str) -> None:
    program = compiled(form, 1000, 520)
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
    got, exact = run(program, inputs)["y"], evaluate(program.graph(), inputs)["y"]
    for row in range(700):
        if row in hard:
            assert got[row].isnan().all(), row
        elif 200 <= row <= 203:
            assert got[row].isfinite().all(), row
            assert error(got[row], exact[row]) < 8e-3, row
        else:
            assert torch.equal(got[row], plain[row]), row


@FORM
def test_repeats_bit_by_bit(form: str) -> None:
    program = compiled(form, 768, 3072)
    check_repeats(program, inputs_of(program.graph(), M=5000))


@FORM
def test_in_a_cuda_graph(form: str) -> None:
    program = compiled(form, 768, 1536)
    given = list(inputs_of(program.graph(), M=1500).values())
    with torch.no_grad():
        eager = program(*given)
        assert isinstance(eager, torch.Tensor)
        first = eager.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = program(*given)
    assert isinstance(captured, torch.Tensor)
    captured.fill_(float("nan"))
    graph.replay()
    assert torch.equal(captured, first)
