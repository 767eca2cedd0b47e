"""Statistics taken along: a projection computes those of the operand that it streams.

The row kernel that would store them goes. Before and after, for an RMSNorm that has been moved past
a projection:

    row kernel:  x -> inv_rms             gone
    projection:  x, w, inv_rms -> a       projection: x, w -> a     (recomputes inv_rms from x)

Which projections do so, and how, is their form: those of few rows (`few_rows.py`), and specialised
ones, which read rows from the very stages that their products read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusedsl.fuse.plan import Form, KernelPlan, Plan
from fusedsl.fuse.rowgroups import anchor_operands, is_reduction
from fusedsl.ir import Kind, Layout


def can_go(plan: Plan, kernel: KernelPlan) -> bool:
    """Whether a kernel is a row kernel that stores nothing but columns made of one operand, which
    every reader is a projection of, and no column is an output of the program."""
    if kernel.kind is not Kind.ROW_REDUCTION:
        return False
    if any(plan.type_of(n).layout is not Layout.COLUMN for n in kernel.writes):
        return False
    if set(kernel.writes) & set(plan.graph.outputs):
        return False
    tiles = [n for n in kernel.reads if plan.type_of(n).layout is Layout.TILE]
    if len(kernel.reads) != 1 or len(tiles) != 1:
        return False
    return all(
        k.anchor is not None and not k.streamed and anchor_operands(k.anchor)[0] == tiles[0]
        for k in readers(plan, kernel)
    )


def adds_up(kernel: KernelPlan) -> bool:
    """Whether a row kernel takes one statistic, of what it reads, that is a sum over the row."""
    found = [node for node in kernel.steps if is_reduction(node)]
    if len(found) != 1 or tuple(found[0].inputs) != kernel.reads:
        return False
    reduction = found[0].block.reduction
    return reduction is not None and reduction.adds


def readers(plan: Plan, kernel: KernelPlan) -> list[KernelPlan]:
    """The kernels that read what a kernel writes."""
    return [k for k in plan.kernels if set(k.reads) & set(kernel.writes)]


def without(
    plan: Plan, gone: Sequence[KernelPlan], form: Form, formed: Sequence[KernelPlan]
) -> Plan:
    """The plan without the row kernels `gone`; the projections `formed`, their readers among them,
    have that form and compute what they read of those."""
    kernels: list[KernelPlan] = []
    for kernel in plan.kernels:
        if kernel in gone:
            continue
        name = f"k{len(kernels)}_{kernel.name.split('_', 1)[1]}"
        if kernel in formed:
            kernel = _taking(kernel, [k for k in gone if set(k.writes) & set(kernel.reads)], form)
        kernels.append(replace(kernel, name=name))
    return replace(plan, kernels=tuple(kernels))


def _taking(kernel: KernelPlan, gone: Sequence[KernelPlan], form: Form) -> KernelPlan:
    """A projection that computes what the kernels that are gone would have stored."""
    steps = tuple(dict.fromkeys(node for k in gone for node in k.steps))
    made = {name for k in gone for name in k.writes}
    reads = tuple(name for name in kernel.reads if name not in made)
    return replace(kernel, form=form, recomputed=steps, reads=reads)
