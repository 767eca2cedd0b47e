"""A large program made small: the same statements on smaller tensors."""

from __future__ import annotations

from fusedsl.blocks import library
from fusedsl.ir import Dim, Graph, GraphBuilder, TensorType


def shrink(graph: Graph, factor: int) -> Graph:
    """The same program with every fixed dimension that `factor` divides divided by it.

    For a look at a large program in the interpreter. Raises FusedslError where the result is not a
    program (a dimension that `factor` does not divide meets one that it does).
    """
    if factor == 1:
        return graph
    b = GraphBuilder(library(), name=graph.name)
    for param in graph.params:
        b.span = param.span
        b.add_param(param.name, _shrink_type(param.type, factor), param.weight)
    for node in graph.nodes:
        b.span, b.origin = node.span, node.origin
        b.call_all(node.block, node.operands, dict(node.attrs), [r.name for r in node.results])
    b.outputs += graph.outputs
    return b.finish()


def _shrink_type(type: TensorType, factor: int) -> TensorType:
    shape = tuple(
        d if d.symbol or d.factor % factor else Dim(d.factor // factor) for d in type.shape
    )
    return TensorType(type.dtype, shape)
