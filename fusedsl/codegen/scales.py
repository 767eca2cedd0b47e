"""Scales that a statistic applies itself, once for each row instead of once for each element.

The maximum of scale · x is scale times that of x, and exp2(scale · x · log2 e - ...) is one fused
multiplication and addition with the scale inside. So a statistic whose `chunk` takes a `scale`
reads x, where its operand is scale · x:

    mul(acc, r)                       acc, with the scale r
    softcap(mul(acc, r), cap)         tanh(acc · (r / cap)), with the scale cap
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fusedsl.codegen.helpers import function_name, parameters, title
from fusedsl.codegen.templates import fragment
from fusedsl.fuse import KernelPlan, Plan
from fusedsl.ir import FactorsOut, Graph, Layout, Node, Operand, Positive, Scales, print_value

if TYPE_CHECKING:
    from fusedsl.codegen.body import Body


@dataclass(frozen=True)
class _Scale:
    """operand ⊙ factor, with a positive number or column."""

    operand: str
    factor: Operand


@dataclass(frozen=True)
class _Factored:
    """A number times what `law` says of the operand."""

    operand: str
    law: FactorsOut


def absorbed(plan: Plan, kernel: KernelPlan) -> frozenset[str]:
    """Values of a kernel that nobody needs, as a per-tile statistic applies their scales."""
    found: set[str] = set()
    for node in kernel.steps:
        value = node.inputs[0] if node.inputs else ""
        if "tiles" not in node.attr_map or not _takes_scale(node):
            continue
        while (below := _scaled(plan, kernel, value)) is not None:
            found.add(value)
            if isinstance(below, _Scale):
                break  # one factor for each row: a second one stays an instruction of its own
            value = below.operand
    return frozenset(found)


def unscaled(body: Body, value: str, lines: list[str]) -> tuple[str, str]:
    """Source text of x and of scale, where the value is scale · x."""
    if value not in body.absorbed:
        return body.operand(value, lines)[0], "1.0"
    below = _scaled(body.plan, body.kernel, value)
    assert below is not None
    node = body.plan.graph.producers[value]
    if isinstance(below, _Scale):
        lines.append(title(node))
        return body.operand(below.operand, lines)[0], body.operand(below.factor, lines)[0]
    x, scale = unscaled(body, below.operand, lines)
    law, name = below.law, body.namer.fresh(f"{value}_share")
    lines.append(title(node))
    arguments = [x, scale, *body.attributes(node, law.triton, 2)]
    lines.append(fragment("call", [name], function_name(law.triton), arguments))
    return name, print_value(node.attr(law.attr))


def _takes_scale(node: Node) -> bool:
    reduction = node.block.reduction
    return reduction is not None and "scale" in parameters(reduction.chunk)


def _scaled(plan: Plan, kernel: KernelPlan, value: str) -> _Scale | _Factored | None:
    """How a value that this kernel computes for one reader, and does not store, is scaled."""
    graph = plan.graph
    node = graph.producers.get(value)
    if node not in kernel.steps or value in kernel.writes or not graph.is_read_once(value):
        return None
    for law in node.block.laws_of(FactorsOut):
        operand = node.operand(law.operand)
        return _Factored(operand, law) if isinstance(operand, str) else None
    for law in node.block.laws_of(Scales):
        operand, factor = node.operand(law.operand), node.operand(law.factor)
        if isinstance(operand, str) and operand in kernel.computed and _is_positive(graph, factor):
            return _Scale(operand, factor)
    return None


def _is_positive(graph: Graph, factor: Operand) -> bool:
    """Whether a factor is a positive number, or a column of them by law."""
    if not isinstance(factor, str):
        return factor is not None and factor > 0
    node = graph.producers.get(factor)
    column = graph.types[factor].layout is Layout.COLUMN
    return column and node is not None and node.block.has_law(Positive)
