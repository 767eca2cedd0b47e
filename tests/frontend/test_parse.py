"""What programs mean: the graph that a text gives."""

from __future__ import annotations

import re
import time

import pytest

from fusedsl.diagnostics import Span
from fusedsl.frontend import parse
from fusedsl.ir import Dim, Graph, print_graph, tensor, verify
from tests.frontend.programs import ALL, LLAMA_MLP, SIGNATURE, errors, program


def body(text: str) -> list[str]:
    """The statements of a program's canonical text."""
    return [line.strip() for line in print_graph(parse(text)).split("\n") if line.startswith("  ")
            and line.endswith(";")]  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_base_programs_are_valid_and_print_canonically(name: str, golden):
    graph = verify(parse(ALL[name]))
    text = print_graph(graph)
    golden(f"frontend/{name}.fdsl", text)
    assert parse(text) == graph
    assert print_graph(parse(text)) == text


def test_the_signature():
    graph = parse(LLAMA_MLP)
    assert graph.name == "llama_mlp"
    assert [p.name for p in graph.params] == ["x", "gain", "w_gate_up", "w_down"]
    assert [p.weight for p in graph.params] == [False, True, True, True]
    assert graph.params[0].type == tensor("bf16", "M", 4096)
    assert graph.params[0].span == Span(2, 18, 2, 19)
    assert graph.outputs == ("y",)


def test_dimensions_may_be_multiples_of_symbols():
    graph = parse("kernel f(x: fp32[2 * M,3*F]) -> (y: fp32[2*M, 3*F]) { y = relu(x); }")
    assert graph.params[0].type.shape == (Dim(2, "M"), Dim(3, "F"))


def test_nested_expressions_flatten_operands_first():
    assert body(program("y = relu(silu(x) + tanh(x * 2)) - x;")) == [
        "silu_1 = silu(x);",
        "mul_1 = x * 2.0;",
        "tanh_1 = tanh(mul_1);",
        "add_1 = silu_1 + tanh_1;",
        "relu_1 = relu(add_1);",
        "y = relu_1 - x;",
    ]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("x - x - x", "(x - x) - x"),
        ("x - x * x", "x - (x * x)"),
        ("x / x * x", "(x / x) * x"),
        ("-x * x", "(-x) * x"),
        ("x - -x", "x - (-x)"),
        ("x * -2.0", "mul(x, -2.0)"),
        ("x * - -2", "x * 2"),
        ("x + 1.", "x + 1.0"),
        ("x + .5e1", "x + 5.0"),
        ("((x) + (1))", "x + 1"),
        ("relu((x),)", "relu(x)"),
        ("linear(x=x, w=x)", "linear(w=x, x=x)"),
        ("x + x;# ; } comment", "x + x"),
    ],
)
def test_precedence_and_spelling(written: str, meant: str):
    shape = "kernel f(x: bf16[64, 64]) -> (y: bf16[64, 64]) {"
    assert parse(f"{shape} y = {written};\n }}") == parse(f"{shape} y = {meant};}}")


def test_fresh_names_avoid_every_name_of_the_text():
    text = program("relu_2 = relu(relu(x)); y = relu(relu(relu_2)) + silu(x);  # relu_1, silu_1\n")
    made = [n.name for n in parse(text).nodes]
    assert made == ["relu_3", "relu_2", "relu_4", "relu_5", "silu_2", "y"]


def test_keywords_are_names_elsewhere():
    text = "kernel kernel(weight: bf16[M, 4]) -> (bf16: bf16[M, 4]) { bf16 = relu(weight); }"
    graph = parse(text)
    assert graph.name == "kernel"
    assert graph.outputs == ("bf16",)
    assert parse(print_graph(graph)) == graph


def test_attributes_of_every_kind():
    graph = parse(
        "kernel f(x: fp32[M, 2*F]) -> (y: fp16[M, F], s: fp32[M, 1]) {"
        " y = half(x, index=1.0, out_dtype=fp16); s = merge_sum(partial_sum(x, tiles=3*T),"
        " width=2 * F); }"
    )
    by_name = {n.block.name: n for n in graph.nodes}
    assert by_name["half"].attr("index") == 1
    assert by_name["half"].attr("out_dtype") == "fp16"
    assert by_name["partial_sum"].attr("tiles") == Dim(3, "T")
    assert by_name["merge_sum"].attr("width") == Dim(2, "F")


def test_negative_literals_and_zero_keep_their_sign():
    graph = parse(program("y = x * -0.0 + x * 0.0 - x * -1e-3;"))
    literals = [op for n in graph.nodes for op in n.operands if isinstance(op, float)]
    assert list(map(repr, literals)) == ["-0.0", "0.0", "-0.001"]
    again = parse(print_graph(graph))
    assert [repr(op) for n in again.nodes for op in n.operands if isinstance(op, float)] == list(
        map(repr, literals)
    )


def test_every_node_knows_its_statement():
    text = "kernel f(x: bf16[M, 64])\n-> (y: bf16[M, 64]) {\n  y =  relu( x )  # half\n   + x;\n}"
    relu, add = parse(text).nodes
    assert relu.origin == add.origin == "y = relu( x ) + x;"
    assert relu.span == add.span == Span(3, 3, 4, 8)


def test_several_results():
    graph = parse(
        "kernel f(x: bf16[M, 64]) -> (a: fp32[M, 1], b: fp32[M, 1]) { a, b = row_moments(x); }"
    )
    assert [r.name for r in graph.nodes[0].results] == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + LLAMA_MLP,
        LLAMA_MLP.replace("\n", "\r\n"),
        LLAMA_MLP.replace("  ", "\t"),
        LLAMA_MLP + "# no newline at the end",
        "\n\n" + LLAMA_MLP + "\n\n",
        LLAMA_MLP.replace("x;", "x;  # µ, 日本, \ud800"),
        LLAMA_MLP.replace("4096])\n", "4096],\n)").replace(
            "(y: bf16[M, 4096])", "(y:bf16[M,4096],)"
        ),
    ],
)
def test_layout_means_nothing(text: str):
    assert parse(text) == parse(LLAMA_MLP)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 10_000 + "x" + ")" * 10_000 + " + x",
        "-" * 10_000 + "x",
        "x + " * 10_000 + "x",
        "relu(" * 10_000 + "x" + ")" * 10_000,
        "(x * " * 10_000 + "x" + ")" * 10_000,
    ],
    ids=["parentheses", "minus", "sum", "calls", "right"],
)
def test_depth_costs_no_recursion(expression: str):
    graph = parse(program(f"y = {expression};"))
    assert graph.outputs == ("y",)


def test_depth_costs_no_recursion_in_errors():
    error = errors(program("y = " + "relu(" * 10_000 + "x" + ")" * 9_999 + ";"))
    assert error.codes == ("F0101",)


def test_megabytes_of_comments():
    started = time.perf_counter()
    parse(f"{SIGNATURE} {'# comment' * 100}\n" + ("#" * 99 + "\n") * 30_000 + "y = relu(x);}")
    assert time.perf_counter() - started < 5


def test_a_graph_prints_itself():
    graph = parse(LLAMA_MLP)
    assert isinstance(graph, Graph)
    assert re.match(r"kernel llama_mlp\(\n    x: bf16\[M, 4096\],\n", str(graph))
