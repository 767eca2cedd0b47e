"""Rows that several programs share, where they run side by side and wait for each other."""

from __future__ import annotations

import pytest
import torch

from fusedsl.ir import evaluate
from tests.codegen.harness import compiled, error, inputs_of, run

PROGRAMS = {
    "rms_norm": "kernel k(x: bf16[M, {n}], g: weight bf16[{n}]) -> (y: bf16[M, {n}]) "
    "{{ y = rms_norm(x, g, eps=1e-6); }}",
    "residual": "kernel k(x: bf16[M, {n}], r: bf16[M, {n}]) -> (s: bf16[M, {n}], y: bf16[M, {n}]) "
    "{{ s = x + r; y = layer_norm(s, eps=1e-5); }}",
    "layer_norm": "kernel k(x: bf16[M, {n}], g: weight bf16[{n}], b: weight bf16[{n}]) "
    "-> (y: bf16[M, {n}]) {{ y = layer_norm(x, g, b, eps=1e-5); }}",
    "chained": "kernel k(x: bf16[M, {n}], r: bf16[M, {n}]) -> (s: bf16[M, {n}], y: bf16[M, {n}]) "
    "{{ s = x + r; y = softmax(s); }}",
}


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 7, 700])
@pytest.mark.parametrize("columns", [100_003, 131_072, 262_144])
@pytest.mark.parametrize("name", PROGRAMS)
def test_shared_rows_are_right_and_repeat(name: str, columns: int, rows: int) -> None:
    program = compiled(PROGRAMS[name].format(n=columns), "pointer")
    inputs = inputs_of(program.graph(), M=rows)
    first = run(program, inputs)
    few = {n: t if t.dim() == 1 else t[-64:] for n, t in inputs.items()}
    exact = evaluate(program.graph(), few)
    for output, value in first.items():
        assert error(value[-64:], exact[output]) < 4e-3
    for _ in range(3):
        again = run(program, inputs)
        assert all(torch.equal(again[n], first[n]) for n in first)


@pytest.mark.gpu
def test_moments_of_shared_rows_far_from_their_first_columns() -> None:
    """An outlier among the columns that parts take moments about costs no more than a rounding."""
    n = 262_144
    program = compiled(PROGRAMS["layer_norm"].format(n=n), "pointer")
    inputs = inputs_of(program.graph(), M=8)
    x = torch.randn_like(inputs["x"].float())
    x[1] += 1000
    x[2, 3] = 30_000
    x[3, -1] = 30_000
    x[4] = 3.14
    x[5, 7], x[6, -1], x[7, n // 2] = float("inf"), -float("inf"), float("nan")
    inputs["x"] = x.bfloat16()
    y, exact = run(program, inputs)["y"], evaluate(program.graph(), inputs)["y"]
    for row in range(5):
        assert error(y[row], exact[row]) < 4e-3, row
    assert y[5:].isnan().all()
