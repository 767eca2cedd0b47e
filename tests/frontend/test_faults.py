"""Mistakes that other systems met; the numbers are those of the project's list of cases."""

from __future__ import annotations

from fusedsl.diagnostics import FusedslError
from fusedsl.frontend import from_json, parse, to_json
from tests.frontend.programs import LLAMA_MLP, errors, marked


def test_case_48_a_name_assigned_twice():
    text = LLAMA_MLP.replace("a = swiglu", "h = swiglu")
    error = errors(text)
    item = error.diagnostics[0]
    assert item.code == "F0203"
    assert item.message == "'h' is already defined"
    assert item.span is not None
    assert item.span.line == 6
    assert marked(text, error) == "h"
    assert "for example 'h_1'" in (item.fix or "")


def test_case_49_an_undefined_input_name_with_near_names_offered():
    text = LLAMA_MLP.replace("(h, w_gate_up)", "(h, w_gateup)")
    error = errors(text)
    item = next(d for d in error.diagnostics if d.code == "F0202")
    assert item.fix == "did you mean 'w_gate_up'?"
    assert item.suggestion == "w_gate_up"
    assert marked(text, error, error.diagnostics.index(item)) == "w_gateup"


def test_case_50_a_cycle_or_nodes_out_of_order_in_a_json_graph():
    out_of_order = to_json(parse(LLAMA_MLP))
    out_of_order["nodes"].insert(0, out_of_order["nodes"].pop(1))
    cyclic = to_json(parse(LLAMA_MLP))
    cyclic["nodes"][0]["operands"][0] = "a"
    found = {}
    for kind, data in (("order", out_of_order), ("cycle", cyclic)):
        try:
            from_json(data)
        except FusedslError as error:
            found[kind] = next(d for d in error.diagnostics if d.code == "F0104")
    order, cycle = found["order"], found["cycle"]
    assert order.message == "the nodes are out of order: 'linear_1' reads 'h', made later"
    assert order.fix == "move /nodes/1 before /nodes/0"
    assert order.pointer == "/nodes/0/operands/0"
    assert cycle.message == "the nodes form a cycle: h <- a <- linear_1 <- h"
    assert cycle.pointer == "/nodes/0/operands/0"
