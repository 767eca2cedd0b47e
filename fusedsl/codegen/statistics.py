"""What every kernel that takes statistics of rows shares: their order, and how states merge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fusedsl.codegen.body import Body
from fusedsl.codegen.helpers import function_name
from fusedsl.codegen.templates import fragment
from fusedsl.codegen.values import Var
from fusedsl.fuse import KernelPlan, is_reduction
from fusedsl.ir import Layout, Node, Reduction


def emit_columns(body: Body, nodes: list[Node], lines: list[str]) -> list[Node]:
    """Emit nodes that need columns alone; the rest is returned."""
    rest: list[Node] = []
    for node in nodes:
        if body.column_only(node):
            body.emit(node, lines)
        else:
            rest.append(node)
    return rest


def depends_on_none(node: Node, nodes: list[Node]) -> bool:
    """Whether no other pending statistic is needed first."""
    pending = {r.name: n for n in nodes for r in n.results}
    queue = list(node.inputs)
    while queue:
        before = pending.get(queue.pop())
        if before is None:
            continue
        if is_reduction(before):
            return False
        queue += before.inputs
    return True


def per_row(body: Body) -> dict[str, Var]:
    """Column vectors and scalars: they outlive a pass over the columns."""
    return {k: v for k, v in body.values.items() if v.layout in (Layout.COLUMN, Layout.SCALAR)}


def recompute(body: Body, kernel: KernelPlan, value: str, lines: list[str]) -> None:
    """Emit, in this pass, the nodes that `value` needs; nothing is stored here."""
    order = kernel.needed([value], body.values)
    kept, body.kernel = body.kernel, replace(kernel, writes=())
    for node in order:
        body.emit(node, lines)
    body.kernel = kept


def next_statistics(nodes: list[Node]) -> list[Node]:
    """The pending statistics that depend on no other."""
    return [n for n in nodes if is_reduction(n) and depends_on_none(n, nodes)]


def next_steps(nodes: list[Node]) -> list[Node]:
    """The pending nodes that are no statistics and depend on none."""
    return [n for n in nodes if not is_reduction(n) and depends_on_none(n, nodes)]


def may_spread(kernel: KernelPlan, body: Body) -> bool:
    """Whether row vectors may lie as tiles do: none of them is stored."""
    return all(body.type_of(name).layout is not Layout.ROW for name in kernel.writes)


def merge_lanes(body: Body, node: Node, before: str, running: list[str], lines: list[str]) -> None:
    """Merge the elements at hand into the states of their lanes; `before` is how many came."""
    reduction = reduction_of(node)
    found = body.lift(node, node.inputs[0], lines)
    merged = body.state_names(node, "_next")
    arguments = [before, *running, "1", *found]
    lines.append(fragment("call", merged, function_name(reduction.merge), arguments))
    for state, name in zip(running, merged, strict=True):
        lines.append(fragment("keep_live", state, name))


def take_apart(
    body: Body, apart_of: Any, piece: str, centre: str, names: list[str], lines: list[str]
) -> None:
    """Name what lies of a piece apart from the rows' centre, for a statistic about the mean."""
    arguments = [piece, "col_live[None, :]", f"{centre}[:, None]"]
    lines.append(fragment("call", names, function_name(apart_of), arguments))


def merge_all(
    body: Body, node: Node, states: list[str], counts: str, lines: list[str]
) -> list[str]:
    """Merge the states of lanes, or of parts, into one state of the row."""
    merged = body.state_names(node, "_all")
    function = function_name(reduction_of(node).merge_all)
    lines.append(fragment("call", merged, function, [*states, counts]))
    return merged


def reduction_of(node: Node) -> Reduction:
    """What the block of a statistic says about it."""
    assert node.block.reduction is not None
    return node.block.reduction
