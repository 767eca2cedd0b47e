"""Programs run on emitted kernels, held against fp64 and against eager torch."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import fusedsl
from fusedsl.codegen import KernelSource, compile_time_value
from fusedsl.fuse import CostModel, Plan, fuse
from fusedsl.ir import Graph, evaluate, evaluate_eager, random_inputs
from fusedsl.runtime.device import target_of
from fusedsl.runtime.load import interprets
from fusedsl.runtime.program import Options, Program, Stages
from fusedsl.schedule import TileConfig, may_specialise

DEVICE = "cuda" if torch.cuda.is_available() and not interprets() else "cpu"
LOOPS = ("tma", "pointer")
CUDA = torch.cuda.is_available()
#: Marks of tests of kernels that are emitted for Hopper alone.
ON_HOPPER = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not CUDA or not may_specialise(target_of(torch.device("cuda"))), reason="Hopper only"
    ),
]


def calls_in(tree: ast.AST) -> set[str]:
    """The functions that are called by their names alone."""
    calls = (n.func for n in ast.walk(tree) if isinstance(n, ast.Call))
    return {function.id for function in calls if isinstance(function, ast.Name)}


def functions_in(tree: ast.Module) -> set[str]:
    """The functions that a file defines."""
    return {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}


def arguments(
    kernel: KernelSource, plan: Plan, config: TileConfig, tensors: Mapping[str, Tensor], rows: int
) -> list[Any]:
    """The arguments of an emitted kernel, in order, tensors for pointers."""
    found: list[Any] = []
    for arg in kernel.args:
        if arg.role == "pointer":
            found.append(tensors[arg.value])
        elif arg.role in ("stride", "fixed_stride"):
            found.append(tensors[arg.value].stride(0))
        elif arg.role == "rows":
            found.append(rows)
        else:
            configs = {kernel.name: config}
            found.append(compile_time_value(arg, kernel.name, plan, configs, {"M": rows}))
    return found


def planned_on_gpu(program: Program, rows: int) -> Plan:
    """The plan that a call with so many rows M has on the GPU."""
    return program._engine.planned({"M": rows}, target_of(torch.device("cuda"))).plan


#: Error allowed: RATIO times eager's, and FLOOR for chains that eager computes exactly.
RATIO, FLOOR = 1.6, 3e-7


def compiled(program: Any, main_loop: str = "auto", **options: Any) -> Program:
    """A program that uses one main loop."""
    found = fusedsl.compile(program, **options)
    found.main_loop = main_loop
    return found


def unrewritten(graph: Graph, cost: CostModel | None = None, **options: Any) -> Program:
    """A graph of primitive blocks, planned as it stands."""
    from fusedsl.rewrite import RewriteResult

    plan: Plan = fuse(graph, cost)
    return Program(Stages(graph, graph, RewriteResult(graph, ()), plan), Options(**options))


def run(program: Program, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The outputs by name; every buffer held NaN before the first launch."""
    graph = program.graph()
    with torch.no_grad():
        outputs = program.run_poisoned(*(inputs[p.name] for p in graph.params))
    return dict(zip(graph.outputs, outputs, strict=True))


def error(got: Tensor, exact: Tensor) -> float:
    """Relative Frobenius error; of zeros, the absolute one."""
    return float((got.double() - exact).norm() / (float(exact.norm()) or 1.0))


def check(
    program: Program, inputs: Mapping[str, Tensor], ratio: float = RATIO, floor: float = FLOOR
) -> dict[str, Tensor]:
    """Run; every output is finite and at most as far from fp64 as `ratio` times eager."""
    graph = program.graph()
    exact, eager = evaluate(graph, inputs), evaluate_eager(graph, inputs)
    outputs = run(program, inputs)
    for name, got in outputs.items():
        assert got.shape == exact[name].shape and got.dtype == eager[name].dtype
        assert torch.isfinite(got).all(), f"{name} is not finite"
        found, allowed = error(got, exact[name]), error(eager[name], exact[name])
        assert found <= ratio * allowed + floor, (name, found, allowed)
    return outputs


def check_repeats(program: Program, inputs: Mapping[str, Tensor], times: int = 30) -> None:
    """Outputs are the same bit by bit, again and again, whatever the GPU did in between."""
    first = run(program, inputs)
    noise = torch.randn(4096, 4096, device="cuda")
    for turn in range(times):
        if turn % 3 == 0:
            noise @= noise.T / 4096
        again = run(program, inputs)
        assert all(torch.equal(again[name], first[name]) for name in first), turn


def inputs_of(graph: Graph, seed: int = 0, **dims: int) -> dict[str, Tensor]:
    """Fresh inputs; symbols are 5 where not given."""
    symbols = {s for p in graph.params for s in p.type.symbols}
    return random_inputs(graph, {s: dims.get(s, 5) for s in symbols}, seed=seed, device=DEVICE)


def check_text(text: str, main_loop: str = "auto", *, seed: int = 0, **dims: int) -> Program:
    """Compile and check DSL text on fresh inputs."""
    program = compiled(text, main_loop)
    check(program, inputs_of(program.graph(), seed, **dims))
    return program
