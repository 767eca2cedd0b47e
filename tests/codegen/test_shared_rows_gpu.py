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
    "chained": "kernel k(x: bf16[M, {n}], r: bf16[M, {n}]) -> (s: bf16[M, {n}], y: bf16[M, {n}]) "
    "{{ s = x + r; y = softmax(s); }}",
}


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 7, 700])
@pytest.mark.parametrize("columns", [100_003, 131_072, 262_144])
@pytest.mark.parametrize("name", PROGRAMS)
def test_shared_rows_are_right_and_repeat(name: str, columns: int, rows: int) -> None:
    program = compiled(PROGRAMS[name].format(n=columns))
    inputs = inputs_of(program.graph(), M=rows)
    first = run(program, inputs)
    few = {n: t if t.dim() == 1 else t[-64:] for n, t in inputs.items()}
    exact = evaluate(program.graph(), few)
    for output, value in first.items():
        assert error(value[-64:], exact[output]) < 4e-3
    for _ in range(3):
        again = run(program, inputs)
        assert all(torch.equal(again[n], first[n]) for n in first)
