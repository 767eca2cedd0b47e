"""A graph is valid before and after every stage, or the stage is at fault."""

from __future__ import annotations

from fusedsl.diagnostics import Diagnostic, Diagnostics
from fusedsl.ir.block import Kind, TypeProblem
from fusedsl.ir.builder import Call, infer_types
from fusedsl.ir.graph import Graph, Node


def verify(graph: Graph) -> Graph:
    """Check order, names, types, dims and uses; returns the graph.

    Raises FusedslError with every problem found: F0202, F0203, F0204, F0205, F0404, F0407, F0901
    and the codes of `Block.infer`.
    """
    bag = Diagnostics()
    defined: set[str] = set()
    for param in graph.params:
        _define(param.name, defined, bag)
    for node in graph.nodes:
        _check_node(graph, node, defined, bag)
        for result in node.results:
            _define(result.name, defined, bag)
    for output in graph.outputs:
        if output in graph.producers:
            _check_bound(graph, output, bag)
        else:
            bag.add(_unassigned(output))
    bag.raise_if_any()
    _check_uses(graph, bag)
    bag.raise_if_any()
    return graph


def _define(name: str, defined: set[str], bag: Diagnostics) -> None:
    if name in defined:
        bag.add(Diagnostic("F0203", f"'{name}' is already defined", fix="use another name"))
    defined.add(name)


def _check_bound(graph: Graph, output: str, bag: Diagnostics) -> None:
    bound = {symbol for param in graph.params for symbol in param.type.symbols}
    for symbol in graph.types[output].symbols:
        if symbol not in bound:
            bag.add(
                Diagnostic(
                    "F0404",
                    f"the dimension '{symbol}' is not bound by any parameter",
                    expected="a name in the shape of a parameter",
                    got=f"'{output}' of type {graph.types[output]}",
                    where=f"in output '{output}'",
                    fix=f"leave '{output}' out of the outputs, or reduce it first",
                    span=graph.producers[output].span,
                )
            )


def _unassigned(output: str) -> Diagnostic:
    return Diagnostic(
        "F0204",
        f"output '{output}' is never assigned",
        expected=f"a statement '{output} = ...;'",
        got="none",
        fix=f"assign '{output}', or take it out of the signature",
    )


def _check_node(graph: Graph, node: Node, defined: set[str], bag: Diagnostics) -> None:
    missing = [name for name in node.inputs if name not in defined]
    if missing:
        for name in missing:
            bag.add(
                Diagnostic(
                    "F0202",
                    f"'{name}' is not defined before '{node.name}'",
                    where=f"in '{node.name}'",
                    fix="move the statement that assigns it above",
                    span=node.span,
                )
            )
        return
    if node.block.kind is Kind.PACKING:
        for name in node.inputs:
            if name not in graph.weights:
                bag.add(
                    Diagnostic(
                        "F0407",
                        f"'{node.block.name}' works on weights only",
                        expected="a parameter with the qualifier 'weight'",
                        got=f"'{name}', which changes on every call",
                        where=f"in '{node.name}'",
                        fix=f"declare '{name}: weight ...', or do without '{node.block.name}'",
                        span=node.span,
                    )
                )
    try:
        types = infer_types(node.block, Call(node.operands, node.attrs), graph.types)
    except TypeProblem as problem:
        bag.add(
            Diagnostic(
                problem.code,
                problem.message,
                expected=problem.expected,
                got=problem.got,
                where=f"in '{node.name}'",
                fix=problem.fix,
                span=node.span,
            )
        )
        return
    stored = tuple(result.type for result in node.results)
    if types != stored:
        bag.add(
            Diagnostic(
                "F0901",
                f"'{node.name}' carries a type its block does not infer",
                expected=", ".join(map(str, types)),
                got=", ".join(map(str, stored)),
                where=f"in '{node.name}'",
                fix="rebuild the node through GraphBuilder.call",
                span=node.span,
            )
        )


def _check_uses(graph: Graph, bag: Diagnostics) -> None:
    for node in graph.nodes:
        if any(r.name in graph.outputs or graph.readers[r.name] for r in node.results):
            continue
        bag.add(
            Diagnostic(
                "F0205",
                f"'{node.name}' is never used",
                expected="every value read by a statement or listed as an output",
                got=f"no reader of '{node.name}'",
                fix=f"take the statement out, or add '{node.name}' to the outputs",
                span=node.span,
            )
        )
    for param in graph.params:
        if not graph.readers[param.name]:
            bag.add(
                Diagnostic(
                    "F0205",
                    f"parameter '{param.name}' is never used",
                    expected="every parameter read by a statement",
                    got=f"no reader of '{param.name}'",
                    fix=f"take '{param.name}' out of the signature",
                    span=param.span,
                )
            )
