"""A plan for calls with few rows (decoding): a projection then costs one read of its weights.

The operand that a projection streams is so small that every program can take its statistics
itself, which saves the launch that would take them. Before and after, for an RMSNorm that has been
moved past a projection:

    row kernel:  x -> inv_rms             gone
    projection:  x, w, inv_rms -> a       projection: x, w -> a     (recomputes inv_rms from x)

A row kernel goes if it stores nothing but columns made of one operand, every reader is a
projection that streams that operand, and no column is an output of the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusedsl.fuse.plan import KernelPlan, Plan
from fusedsl.fuse.rowgroups import anchor_operands
from fusedsl.ir import Kind, Layout

#: The most rows for which a plan for few rows is used.
FEW_ROWS = 64


def for_few_rows(plan: Plan) -> Plan:
    """The same program planned for at most `FEW_ROWS` rows in every projection; a plan for few
    rows as it is."""
    if any(kernel.few_rows for kernel in plan.kernels):
        return plan
    gone = {kernel.name: kernel for kernel in plan.kernels if _can_go(plan, kernel)}
    kernels: list[KernelPlan] = []
    for kernel in plan.kernels:
        if kernel.name in gone:
            continue
        if kernel.kind is Kind.GEMM:
            mine = [k for k in gone.values() if set(k.writes) & set(kernel.reads)]
            kernel = _taking(kernel, mine)
        kernels.append(replace(kernel, name=f"k{len(kernels)}_{kernel.name.split('_', 1)[1]}"))
    return replace(plan, kernels=tuple(kernels))


def planned(plan: Plan, env: Mapping[str, int]) -> Plan:
    """The plan that runs where `env` binds the dims: `plan` itself, or the one for few rows."""
    return for_few_rows(plan) if has_few_rows(plan, env) else plan


def has_few_rows(plan: Plan, env: Mapping[str, int]) -> bool:
    """Whether no projection has more than `FEW_ROWS` rows (and there is one)."""
    rows = [k.rows.bind(env) for k in plan.kernels if k.kind is Kind.GEMM]
    return bool(rows) and max(rows) <= FEW_ROWS


def _can_go(plan: Plan, kernel: KernelPlan) -> bool:
    if kernel.kind is not Kind.ROW_REDUCTION:
        return False
    if any(plan.type_of(n).layout is not Layout.COLUMN for n in kernel.writes):
        return False
    if set(kernel.writes) & set(plan.graph.outputs):
        return False
    tiles = [n for n in kernel.reads if plan.type_of(n).layout is Layout.TILE]
    if len(kernel.reads) != 1 or len(tiles) != 1:
        return False
    readers = [k for k in plan.kernels if set(k.reads) & set(kernel.writes)]
    return all(
        k.anchor is not None and not k.streamed and anchor_operands(k.anchor)[0] == tiles[0]
        for k in readers
    )


def _taking(kernel: KernelPlan, gone: list[KernelPlan]) -> KernelPlan:
    """A projection that computes what the kernels that are gone would have stored."""
    steps = tuple(dict.fromkeys(node for k in gone for node in k.steps))
    made = {name for k in gone for name in k.writes}
    reads = tuple(name for name in kernel.reads if name not in made)
    return replace(kernel, few_rows=True, recomputed=steps, reads=reads)
