"""Composites into primitives: what a norm or a gated unit is made of, so that rules see it.

    h = rms_norm(x, gain, eps=1e-6)
→   s = row_mean_square(x); r = inv_rms(s, eps=1e-6); n = x * r; h = n * gain

A block says itself what it expands into. Equal nodes are then made one, so that two norms of the
same x share their statistics, and what nothing reads is dropped.
"""

from __future__ import annotations

from dataclasses import replace

from fusedsl.blocks import library
from fusedsl.diagnostics import Diagnostic, FusedslError
from fusedsl.ir import Graph, GraphBuilder, Node, verify
from fusedsl.rewrite.cleanup import drop_dead, share_equal


def expand(graph: Graph) -> Graph:
    """The same program in primitives; names of outputs, origins and spans are kept.

    Raises FusedslError (F0901) where a block expands into another type than it infers.
    """
    builder = GraphBuilder(library(), graph.name, reserved=set(graph.types))
    for param in graph.params:
        builder.params.append(param)
        builder.types[param.name] = param.type
    for node in graph.nodes:
        _lower(builder, node)
    expanded = Graph(graph.name, graph.params, tuple(builder.nodes), graph.outputs)
    return verify(drop_dead(share_equal(expanded)))


def _lower(builder: GraphBuilder, node: Node) -> None:
    """Append what a node expands into; a node that expands into itself is a primitive."""
    for part in _parts(builder, node):
        if part == node:
            builder.nodes.append(node)
            builder.types.update({r.name: r.type for r in node.results})
        else:
            _lower(builder, part)
    if builder.types[node.name] != node.type:
        raise FusedslError(_wrong_type(node, str(builder.types[node.name])))


def _parts(builder: GraphBuilder, node: Node) -> tuple[Node, ...]:
    if node.block.expand is None:
        return (node,)
    scratch = replace(
        builder,
        nodes=[],
        types=dict(builder.types),
        origin=node.origin,
        span=node.span,
    )
    names = [operand.name for operand in node.block.operands]
    operands = dict(zip(names, node.operands, strict=True))
    node.block.expand(scratch, operands, dict(node.attrs), node.name)
    builder.reserved.update(r.name for part in scratch.nodes for r in part.results)
    return tuple(scratch.nodes)


def _wrong_type(node: Node, got: str) -> Diagnostic:
    return Diagnostic(
        "F0901",
        f"'{node.block.name}' expands into another type than it infers",
        expected=str(node.type),
        got=got,
        where=f"in '{node.name}'",
        fix=f"correct the expansion of '{node.block.name}'",
        span=node.span,
    )
