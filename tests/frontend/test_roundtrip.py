"""Random graphs through text, JSON and the builder: the same graph comes back."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings

from fusedsl.frontend import Kernel, from_json, parse, to_json
from fusedsl.ir import Graph, print_graph, verify
from tests.frontend.programs import graphs

often = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@often
@given(graphs())
def test_text(graph: Graph):
    text = print_graph(verify(graph))
    assert parse(text) == graph
    assert print_graph(parse(text)) == text


@often
@given(graphs())
def test_json(graph: Graph):
    data = to_json(graph)
    assert from_json(json.dumps(data)) == graph
    assert to_json(from_json(data)) == data


@often
@given(graphs())
def test_builder(graph: Graph):
    k = Kernel(graph.name)
    values = {}
    for p in graph.params:
        declare = k.weight if p.weight else k.input
        values[p.name] = declare(p.name, p.type.dtype, *p.type.shape)
    for node in graph.nodes:
        operands = [values[op] if isinstance(op, str) else op for op in node.operands]
        names = [r.name for r in node.results]
        made = k.call(node.block.name, *operands, name=names, **dict(node.attrs))
        values.update(zip(names, made if node.block.results else [made], strict=True))
    k.output(*(values[name] for name in graph.outputs))
    assert k.graph() == graph
