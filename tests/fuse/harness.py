"""Plans of programs, and a plan carried out kernel by kernel in fp64."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from fusedsl.frontend import parse
from fusedsl.fuse import CostModel, KernelPlan, Plan, fuse
from fusedsl.ir import Graph, Kind, bind_dims, call_reference
from fusedsl.ir.interpret import store
from fusedsl.rewrite import RewriteOptions, expand, rewrite

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str, dtype: str = "bf16", shrink: int = 1) -> str:
    """The text of an example in another dtype, its sizes divided."""
    text = (EXAMPLES / f"{name}.fdsl").read_text().replace("bf16", dtype)
    return re.sub(r"\b\d{3,}\b", lambda m: str(max(32, int(m.group()) // shrink)), text)


def plan_of(program: str | Graph, cost: CostModel | None = None, **options: object) -> Plan:
    """The plan of DSL text or a graph."""
    graph = parse(program) if isinstance(program, str) else program
    return fuse(rewrite(expand(graph), RewriteOptions(**options)).graph, cost)  # type: ignore[arg-type]


def kinds(plan: Plan) -> list[str]:
    """Kinds of the kernels in launch order."""
    return [kernel.kind.value for kernel in plan.kernels]


def only_normalises(kernel: KernelPlan) -> bool:
    """Whether a kernel stores a tile without a projection: a pass that fusion should avoid."""
    return kernel.kind is not Kind.GEMM


def run_plan(plan: Plan, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Carry a plan out in fp64. A kernel sees nothing but what it says it reads."""
    env = bind_dims(plan.graph, inputs)
    memory = {name: tensor.double() for name, tensor in inputs.items()}
    for node in plan.bind:
        store(memory, node, call_reference(node, memory, env, node.block.reference))
    for kernel in plan.kernels:
        values = {name: memory[name] for name in kernel.reads}
        for node in kernel.nodes if not kernel.streamed else _streamed_first(kernel):
            store(values, node, call_reference(node, values, env, node.block.reference))
        memory.update({name: values[name] for name in kernel.writes})
    return {name: memory[name] for name in plan.graph.outputs}


def _streamed_first(kernel: KernelPlan):
    assert kernel.anchor is not None
    return (*kernel.streamed, kernel.anchor, *kernel.steps)


def assert_same(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    """Equal up to the order of fp64 sums."""
    for name, value in want.items():
        scale = value.abs().max().clamp_min(1e-30)
        error = float((got[name] - value).abs().max() / scale)
        assert torch.isfinite(got[name]).all() and error < 2e-11, (name, error)
