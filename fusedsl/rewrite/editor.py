"""Replacing nodes: what a rule builds takes the place and the result names of what it replaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fusedsl.blocks import library
from fusedsl.diagnostics import FusedslError
from fusedsl.ir import (
    Block,
    DType,
    Graph,
    GraphBuilder,
    Node,
    Operand,
    arrange_call,
    infer_types,
)
from fusedsl.rewrite.cleanup import in_order


class Editor:
    """Builds nodes in place of others.

    A node that is added stands where the replaced node stood that `at` named last (at first the
    first one), and carries its origin and span. A name of a replaced node must be defined again,
    unless nothing reads it any more.
    """

    def __init__(self, graph: Graph, *replaced: Node):
        self._graph = graph
        self._added: dict[str, list[Node]] = {node.name: [] for node in replaced}
        names = {result.name for node in replaced for result in node.results}
        types = {name: type for name, type in graph.types.items() if name not in names}
        self._builder = GraphBuilder(library(), types=types, reserved=names)
        self.at(replaced[0])

    def at(self, node: Node) -> None:
        """Go on in the place of this replaced node."""
        self._builder.nodes = self._added[node.name]
        self._builder.origin = node.origin
        self._builder.span = node.span

    def emit(
        self,
        block: str | Block,
        *operands: Operand,
        stored: DType | None = None,
        name: str | None = None,
        **attrs: object,
    ) -> str:
        """Add a node and give its name; `stored` is the storage dtype of its result."""
        spec = library()[block] if isinstance(block, str) else block
        if stored is not None and self._natural(spec, operands, attrs) is not stored:
            attrs["out_dtype"] = stored.value
        return self._builder.call_all(spec, operands, attrs, (name,) if name else ())[0]

    def emit_all(
        self, block: str, operands: Sequence[Operand], names: Sequence[str], **attrs: object
    ) -> tuple[str, ...]:
        """Add a node with several results and give their names."""
        return self._builder.call_all(block, operands, attrs, names)

    def again(
        self,
        node: Node,
        change: Mapping[str, str],
        *,
        stored: DType | None = None,
        name: str | None = None,
    ) -> str:
        """Add a node like `node`, operands renamed by `change`; its origin and span stay."""
        builder = self._builder
        here = builder.origin, builder.span
        builder.origin, builder.span = node.origin, node.span
        operands = [change.get(op, op) if isinstance(op, str) else op for op in node.operands]
        attrs = {key: value for key, value in node.attrs if key != "out_dtype"}
        stored = stored or node.type.dtype
        result = self.emit(node.block, *operands, stored=stored, name=name, **attrs)
        builder.origin, builder.span = here
        return result

    def reread(self, node: Node, change: Mapping[str, str]) -> None:
        """Put a replaced node back as it was, with operands renamed by `change`."""
        self.at(node)
        operands = tuple(change.get(op, op) if isinstance(op, str) else op for op in node.operands)
        self._builder.nodes.append(replace(node, operands=operands))
        self._builder.types.update({r.name: r.type for r in node.results})

    def finish(self) -> Graph:
        """The graph with the added nodes in place of the replaced ones."""
        nodes: list[Node] = []
        for node in self._graph.nodes:
            nodes += self._added.get(node.name, [node])
        return replace(self._graph, nodes=in_order(nodes))

    def _natural(
        self, block: Block, operands: Sequence[Operand], attrs: Mapping[str, object]
    ) -> DType:
        plain = [float(op) if isinstance(op, int) else op for op in operands]
        call, problems = arrange_call(block, plain, attrs)
        if call is None:
            raise FusedslError(problems)
        return infer_types(block, call, self._builder.types)[0].dtype
