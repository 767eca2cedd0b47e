"""Expansion, sharing, order, the bound and the trace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fusedsl.blocks import library
from fusedsl.diagnostics import FusedslError
from fusedsl.frontend import parse
from fusedsl.ir import Block, Graph, GraphBuilder, Kind, Node, OperandSpec, print_graph, tensor
from fusedsl.rewrite import RULES, Rule, TraceEntry, expand, rewrite
from fusedsl.rewrite.cleanup import in_order, share_equal
from fusedsl.rewrite.rule import Context, Fired
from tests.rewrite.harness import assert_same_meaning, blocks, rewritten


def test_expand_leaves_primitives_and_keeps_origins() -> None:
    source = parse("""
kernel norm(x: bf16[M, 32], g: weight bf16[32], w: weight bf16[64, 32], b: weight bf16[64])
    -> (y: bf16[M, 32]) {
  h = rms_norm(x, g, eps=1e-5);
  y = swiglu(linear(h, w, b));
}""")
    graph = expand(source)
    assert blocks(graph) == [
        "row_mean_square", "inv_rms", "mul", "mul", "linear", "add", "half", "half", "silu", "mul",
    ]  # fmt: skip
    origins = {node.origin for node in source.nodes}
    assert all(node.origin in origins and node.span is not None for node in graph.nodes)
    assert expand(graph) == graph
    assert_same_meaning(source, graph)


def test_expand_shares_equal_nodes() -> None:
    graph = expand(
        parse("""
kernel twice(x: bf16[M, 32], g: weight bf16[32]) -> (y: bf16[M, 32], z: bf16[M, 32]) {
  y = rms_norm(x, eps=1e-5);
  z = relu(rms_norm(x, eps=1e-5)) * g;
}""")
    )
    assert blocks(graph) == ["row_mean_square", "inv_rms", "mul", "relu", "mul"]


def test_sharing_keeps_the_names_of_outputs() -> None:
    graph = parse("""
kernel same(x: bf16[M, 32]) -> (y: bf16[M, 32], z: bf16[M, 32], t: bf16[M, 32]) {
  a = relu(x);
  y = relu(x);
  z = relu(x);
  t = a + z;
}""")
    shared = share_equal(graph)
    assert shared.outputs == ("y", "z", "t")
    assert blocks(shared) == ["relu", "relu", "add"]
    assert_same_meaning(graph, shared)


def test_expansion_of_the_wrong_type_is_an_error() -> None:
    def expands(b: GraphBuilder, operands: dict, attrs: dict, name: str) -> str:
        return b.call("cast", operands["x"], dtype="fp32", name=name)

    block = Block(
        name="liar",
        kind=Kind.COMPOSITE,
        operands=(OperandSpec("x"),),
        infer=lambda operands, attrs: operands["x"],
        reference=lambda x: x,
        expand=expands,
    )
    b = GraphBuilder(library())
    b.outputs = [b.call(block, b.add_param("x", tensor("bf16", "M", 32)), name="y")]
    with pytest.raises(FusedslError) as error:
        expand(b.finish())
    assert error.value.codes == ("F0901",)


def test_rule_without_end_is_an_error() -> None:
    def apply(context: Context, node: Node) -> Fired:
        return Fired(context.graph, "nothing")

    restless = Rule("restless", "x", "x", "", {}, apply, "")
    with pytest.raises(FusedslError, match="does not come to an end"):
        rewrite(expand(parse(RULES[0].example)), rules=[restless])


def test_in_order_puts_values_before_their_readers() -> None:
    graph = expand(parse(RULES[0].example))
    assert in_order(graph.nodes) == graph.nodes
    shuffled = tuple(reversed(graph.nodes))
    ordered = Graph(graph.name, graph.params, in_order(shuffled), graph.outputs)
    assert_same_meaning(graph, ordered)


def test_trace_reads_well() -> None:
    entry = TraceEntry("fold_gain", False, "y", "y = linear(x * g, w);", "weights", "'g' changes")
    assert str(entry) == (
        "fold_gain refused (weights) at 'y' of `y = linear(x * g, w);`: 'g' changes"
    )
    assert "fired at 'y':" in str(replace(entry, fired=True, origin=""))


def test_rewritten_text_reads_back() -> None:
    for rule in RULES:
        _, result = rewritten(rule.example)
        if "tiles=" not in str(result.graph):
            assert print_graph(parse(print_graph(result.graph))) == print_graph(result.graph)


def test_graph_of_nothing_to_do() -> None:
    graph = expand(parse("kernel id(x: bf16[M, 32]) -> (y: bf16[M, 32]) { y = relu(x); }"))
    result = rewrite(graph)
    assert result.graph == graph
    assert result.trace == ()
