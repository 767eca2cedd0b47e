"""The canonical text of a graph: parse(print(g)) == g."""

from __future__ import annotations

from math import copysign

from fusedsl.ir.block import AttrValue
from fusedsl.ir.graph import Graph, Node, Operand, Param


def print_graph(graph: Graph) -> str:
    """One statement per node, one parameter per line, defaults left out."""
    params = ",\n    ".join(_param(p) for p in graph.params)
    outputs = ", ".join(f"{name}: {graph.types[name]}" for name in graph.outputs)
    body = "".join(f"  {print_node(node)}\n" for node in graph.nodes)
    return f"kernel {graph.name}(\n    {params}\n) -> ({outputs}) {{\n{body}}}\n"


def _param(param: Param) -> str:
    return f"{param.name}: {'weight ' if param.weight else ''}{param.type}"


def print_node(node: Node) -> str:
    """`h = rms_norm(x, gain, eps=1e-06);`"""
    targets = ", ".join(result.name for result in node.results)
    return f"{targets} = {_expression(node)};"


def _expression(node: Node) -> str:
    block = node.block
    attrs = _changed_attrs(node)
    operands = node.operands
    if block.infix and not attrs and all(_plain(op) for op in operands):
        return f"{print_operand(operands[0])} {block.infix} {print_operand(operands[1])}"
    if block.prefix and not attrs and isinstance(operands[0], str):
        return f"{block.prefix}{operands[0]}"
    parts: list[str] = []
    skipped = False
    for spec, operand in zip(block.operands, operands, strict=True):
        if operand is None:
            skipped = True
            continue
        text = print_operand(operand)
        parts.append(f"{spec.name}={text}" if skipped else text)
    parts += [f"{name}={print_value(value)}" for name, value in attrs]
    return f"{block.name}({', '.join(parts)})"


def _plain(operand: Operand) -> bool:
    return isinstance(operand, str) or (isinstance(operand, float) and copysign(1.0, operand) > 0)


def _changed_attrs(node: Node) -> list[tuple[str, AttrValue]]:
    specs = node.block.all_attrs
    return [(n, v) for n, v in node.attrs if specs[n].required or specs[n].default != v]


def print_operand(operand: Operand) -> str:
    """A name, or a literal that reads back as the same double."""
    return operand if isinstance(operand, str) else print_value(0.0 if operand is None else operand)


def print_value(value: AttrValue) -> str:
    """An attribute value or literal that reads back as the same value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    return str(value)
