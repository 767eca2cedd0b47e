"""What keeps a graph tidy between rules: equal nodes, dead nodes, order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from fusedsl.ir import Graph, Node, Operand, Result


def drop_dead(graph: Graph) -> Graph:
    """Without the nodes that no output depends on."""
    live = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(result.name in live for result in node.results):
            live.update(node.inputs)
            kept.append(node)
    return replace(graph, nodes=tuple(reversed(kept)))


def _every(node: Node) -> bool:
    return True


def share_equal(graph: Graph, among: Callable[[Node], bool] = _every) -> Graph:
    """Equal nodes made one; `among` says which nodes may be.

    Outputs keep their names: the node that remains takes the name of an output among its equals,
    and two outputs of equal value stay two nodes.
    """
    value: dict[str, str] = {}  # a name → the first name of the same value
    classes: dict[object, list[Node]] = {}
    for node in graph.nodes:
        operands = tuple(_renamed(op, value) for op in node.operands)
        types = tuple(result.type for result in node.results)
        key = (node.block, operands, node.attrs, types) if among(node) else node.name
        members = classes.setdefault(key, [])
        members.append(node)
        for result, leader in zip(node.results, members[0].results, strict=True):
            value[result.name] = leader.name
    names: dict[str, str] = {}
    leaders: dict[str, tuple[Result, ...]] = {}
    for members in classes.values():
        columns = zip(*(node.results for node in members), strict=True)
        results = tuple(_chosen(column, graph.outputs) for column in columns)
        leaders[members[0].name] = results
        for node in members:
            names.update({r.name: c.name for r, c in zip(node.results, results, strict=True)})
    nodes: list[Node] = []
    for node in graph.nodes:
        operands = tuple(_renamed(op, names) for op in node.operands)
        results = leaders.get(node.name)
        if results is not None:
            nodes.append(replace(node, operands=operands, results=results))
        elif any(r.name in graph.outputs and names[r.name] != r.name for r in node.results):
            nodes.append(replace(node, operands=operands))
    return replace(graph, nodes=tuple(nodes))


def _chosen(column: tuple[Result, ...], outputs: tuple[str, ...]) -> Result:
    return next((result for result in column if result.name in outputs), column[0])


def _renamed(operand: Operand, names: dict[str, str]) -> Operand:
    return names.get(operand, operand) if isinstance(operand, str) else operand


def in_order(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes with every value before its readers, otherwise in the order they came in."""
    nodes = tuple(nodes)
    producers = {r.name: node for node in nodes for r in node.results}
    done: set[str] = set()
    ordered: list[Node] = []
    for root in nodes:
        stack = [root]
        while stack:
            node = stack[-1]
            if node.name in done:
                stack.pop()
                continue
            waiting = [producers[op] for op in node.inputs if op in producers]
            waiting = [n for n in waiting if n.name not in done]
            if waiting:
                stack += reversed(waiting)
                continue
            done.add(node.name)
            ordered.append(stack.pop())
    return tuple(ordered)
