"""Statistics taken along: a projection computes those of the operand that it streams.

The row kernel that would store them goes. Before and after, for an RMSNorm that has been moved past
a projection:

    row kernel:  x -> inv_rms             gone
    projection:  x, w, inv_rms -> a       projection: x, w -> a     (recomputes inv_rms from x)

Or, where the projection that makes x leaves partial sums of it:

    projection:  -> x, partial_mean_square            projection: -> x
    projection:  x, w, partial_mean_square -> a       projection: x, w -> a

Which projections do so, and how, is their form: those of few rows (`few_rows.py`), and specialised
ones, which read rows from the very stages that their products read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from fusedsl.blocks import library
from fusedsl.fuse.plan import Form, KernelPlan, Plan
from fusedsl.fuse.rowgroups import anchor_operands, is_reduction
from fusedsl.ir import Block, Kind, Layout, Node, StatisticOf


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
    return all(_streams(k, tiles[0]) and not k.recomputed for k in readers(plan, kernel))


def _streams(kernel: KernelPlan, value: str) -> bool:
    """Whether a kernel is a projection of a value, of which it takes no statistic yet."""
    anchor = kernel.anchor
    return anchor is not None and not kernel.streamed and anchor_operands(anchor)[0] == value


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
    return replace(kernel, form=form, recomputed=(*kernel.recomputed, *steps), reads=reads)


@dataclass(frozen=True)
class LeftSum:
    """Partial sums that a projection leaves of what it makes: the node that does, and the names of
    the projections that read them."""

    node: Node
    readers: tuple[str, ...]


def left_sums(plan: Plan) -> Iterator[LeftSum]:
    """Partial sums that nothing reads but projections of the same value, each no others."""
    for kernel in plan.kernels:
        for node in kernel.steps:
            reduction = node.block.reduction
            if "tiles" not in node.attr_map or reduction is None or not reduction.adds:
                continue
            found = [k for k in plan.kernels if node.name in k.reads]
            alone = all(_streams(k, node.inputs[0]) and len(_merges(k)) == 1 for k in found)
            if found and alone and node.name not in plan.graph.outputs:
                yield LeftSum(node, tuple(k.name for k in found))


def _merges(kernel: KernelPlan) -> list[Node]:
    """The nodes that merge what an earlier kernel left."""
    steps = (n for n in kernel.steps if n.block.kind is Kind.EPILOGUE and n.block.reduction)
    return [node for node in steps if "tiles" not in node.attr_map]


def without_sums(plan: Plan, gone: Sequence[LeftSum], form: Form) -> Plan:
    """The plan without these partial sums: their readers have that form and take the whole sums."""
    names = {left.node.name for left in gone}
    return replace(plan, kernels=tuple(_without_sums(k, names, form) for k in plan.kernels))


def _without_sums(kernel: KernelPlan, names: set[str], form: Form) -> KernelPlan:
    steps = tuple(node for node in kernel.steps if node.name not in names)
    writes = tuple(name for name in kernel.writes if name not in names)
    kernel = replace(kernel, steps=steps, writes=writes)
    if not names.intersection(kernel.reads):
        return kernel
    assert kernel.anchor is not None
    (merge,) = _merges(kernel)
    streamed = anchor_operands(kernel.anchor)[0]
    attrs = tuple(attr for attr in merge.attrs if attr[0] != "width")
    whole = replace(merge, block=_statistic(merge.block.name), operands=(streamed,), attrs=attrs)
    steps = tuple(node for node in kernel.steps if node is not merge)
    reads = tuple(name for name in kernel.reads if name not in names)
    return replace(kernel, steps=steps, reads=reads, form=form, recomputed=(whole,))


@cache
def _statistic(merge: str) -> Block:
    """The statistic that a block merges."""
    return next(
        b for b in library().values() if any(x.merge == merge for x in b.laws_of(StatisticOf))
    )
