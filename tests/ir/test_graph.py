from __future__ import annotations

import pytest

from fusedsl.diagnostics import FusedslError, Span
from fusedsl.ir import Graph, GraphBuilder, Node, Param, Result, print_graph, tensor, verify
from fusedsl.ir.printer import print_node, print_operand, print_value
from tests.ir.blocks import LIBRARY, MINUS, PACK, TIMES


def sample() -> Graph:
    b = GraphBuilder(LIBRARY, name="sample")
    b.add_param("x", tensor("bf16", "M", 8))
    b.add_param("w", tensor("bf16", 8), weight=True)
    b.call("pack", "w", name="p")
    b.call("times", "x", "p", name="h")
    b.call_all("spread", ["h"], {}, ["low", "high"])
    b.call("times", "h", "low", name="y", out_dtype="fp32")
    b.outputs = ["y"]
    return b.finish()


def codes(graph: Graph) -> tuple[str, ...]:
    with pytest.raises(FusedslError) as caught:
        verify(graph)
    return caught.value.codes


def changed(graph: Graph, **changes: object) -> Graph:
    fields = ("name", "params", "nodes", "outputs")
    return Graph(*(changes.get(f, getattr(graph, f)) for f in fields))  # type: ignore[arg-type]


def test_who_makes_and_who_reads():
    g = sample()
    assert g.producers["high"].name == "low"
    assert "x" not in g.producers
    assert [n.name for n in g.readers["h"]] == ["low", "y"]
    assert g.readers["high"] == ()
    assert g.is_read_once("x")
    assert not g.is_read_once("h")
    assert not g.is_read_once("y")
    assert g.param("w") == Param("w", tensor("bf16", 8), True)
    assert g.param("h") is None


def test_bind_time():
    g = sample()
    assert g.weights == {"w", "p"}
    assert [n.name for n in g.bind_time_nodes()] == ["p"]
    assert [n.name for n in g.run_time_nodes()] == ["h", "low", "y"]


def test_a_node():
    node = sample().nodes[-1]
    assert (node.name, node.type) == ("y", tensor("fp32", "M", 8))
    assert node.inputs == ("h", "low")
    assert node.operand("b") == "low"
    assert node.attr("out_dtype") == "fp32"
    with pytest.raises(KeyError):
        node.attr("nosuch")


def test_origin_and_span_are_no_part_of_identity():
    node = sample().nodes[0]
    other = Node(node.block, node.operands, node.attrs, node.results, "p = ...", Span(1, 1, 1, 2))
    assert node == other
    assert hash(node) == hash(other)


def test_the_canonical_text():
    assert (
        print_graph(sample())
        == str(sample())
        == (
            "kernel sample(\n"
            "    x: bf16[M, 8],\n"
            "    w: weight bf16[8]\n"
            ") -> (y: fp32[M, 8]) {\n"
            "  p = pack(w);\n"
            "  h = x * p;\n"
            "  low, high = spread(h);\n"
            "  y = times(h, low, out_dtype=fp32);\n"
            "}\n"
        )
    )


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (("times", ("x", 2.0), {}), "y = x * 2.0;"),
        (("times", (2.0, "x"), {}), "y = 2.0 * x;"),
        (("times", ("x", -2.0), {}), "y = times(x, -2.0);"),
        (("times", ("x", -0.0), {}), "y = times(x, -0.0);"),
        (("times", ("x", 1e-6), {}), "y = x * 1e-06;"),
        (("minus", ("x",), {}), "y = -x;"),
        (("minus", ("x",), {"out_dtype": "fp32"}), "y = minus(x, out_dtype=fp32);"),
        (("scale", ("x",), {"by": 1}), "y = scale(x, by=1.0);"),
        (("scale", ("x", 3.0), {"by": 1, "times": 1}), "y = scale(x, 3.0, by=1.0);"),
        (
            ("scale", ("x",), {"by": 1, "times": 2, "kind": "fancy", "on": False, "size": "2*F"}),
            "y = scale(x, by=1.0, times=2, kind=fancy, on=false, size=2*F);",
        ),
    ],
)
def test_statements(call, text: str):
    b = GraphBuilder(LIBRARY)
    b.add_param("x", tensor("bf16", "M", 8))
    block, operands, named = call
    b.call(block, *operands, name="y", **named)
    assert print_node(b.nodes[0]) == text


def test_operands_after_one_left_out_are_named():
    node = Node(TIMES, (None, "x"), (), (Result("y", tensor("bf16", 8)),))
    assert print_node(node) == "y = times(b=x);"


def test_values():
    assert print_value(True) == "true"
    assert print_value(0.1) == "0.1"
    assert print_value(3) == "3"
    assert print_operand("x") == "x"


def test_a_valid_graph_is_given_back():
    g = sample()
    assert verify(g) is g


def test_f0202_a_use_before_the_definition():
    g = sample()
    assert codes(changed(g, nodes=(g.nodes[1], g.nodes[0], *g.nodes[2:]))) == ("F0202",)


def test_f0203_a_name_defined_twice():
    g = sample()
    assert "F0203" in codes(changed(g, params=(*g.params, g.params[0])))
    assert "F0203" in codes(changed(g, nodes=(*g.nodes, g.nodes[-1])))


def test_f0204_an_output_without_a_node():
    g = sample()
    assert codes(changed(g, outputs=("y", "nosuch"))) == ("F0204",)
    assert codes(changed(g, outputs=("y", "x"))) == ("F0204",)


def test_f0205_what_is_never_used():
    g = sample()
    assert codes(changed(g, outputs=("low",))) == ("F0205",)
    extra = Param("z", tensor("bf16", 8))
    assert codes(changed(g, params=(*g.params, extra))) == ("F0205",)


def test_f0402_a_type_problem():
    x, w = Param("x", tensor("bf16", "M", 8)), Param("w", tensor("bf16", 4))
    node = Node(
        TIMES, ("x", "w"), (("out_dtype", "auto"),), (Result("y", x.type),), "", Span(1, 1, 1, 9)
    )
    graph = Graph("f", (x, w), (node,), ("y",))
    assert codes(graph) == ("F0402",)
    with pytest.raises(FusedslError, match="make them equal") as caught:
        verify(graph)
    assert caught.value.diagnostics[0].span == Span(1, 1, 1, 9)


def test_f0404_an_output_of_unbound_size():
    x = Param("x", tensor("bf16", "M", 8))
    odd = Node(MINUS, ("x",), (("out_dtype", "auto"),), (Result("y", tensor("bf16", "Q", 8)),))
    assert set(codes(Graph("f", (x,), (odd,), ("y",)))) == {"F0404", "F0901"}


def test_f0407_packing_of_an_activation():
    x = Param("x", tensor("bf16", 8))
    node = Node(PACK, ("x",), (("out_dtype", "auto"),), (Result("y", tensor("bf16", 8)),))
    assert codes(Graph("f", (x,), (node,), ("y",))) == ("F0407",)


def test_f0901_a_type_that_the_block_does_not_infer():
    g = sample()
    wrong = Node(TIMES, g.nodes[1].operands, g.nodes[1].attrs, (Result("h", tensor("fp32", 1)),))
    assert "F0901" in codes(changed(g, nodes=(g.nodes[0], wrong, *g.nodes[2:])))
