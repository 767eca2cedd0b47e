"""The JSON form: lossless, closed, and its mistakes placed by pointer."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from fusedsl.diagnostics import FusedslError
from fusedsl.frontend import from_json, json_schema, parse, to_json
from tests.frontend.programs import ALL, LLAMA_MLP, MOMENTS, PARTIALS


def mlp() -> dict[str, Any]:
    return to_json(parse(LLAMA_MLP))


def errors(data: Any) -> FusedslError:
    with pytest.raises(FusedslError) as caught:
        from_json(data)
    return caught.value


def placed(data: Any) -> list[tuple[str, str | None]]:
    return [(d.code, d.pointer) for d in errors(data).diagnostics]


@pytest.mark.parametrize("name", ALL)
def test_base_programs_survive(name: str, golden):
    graph = parse(ALL[name])
    data = to_json(graph)
    text = json.dumps(data, indent=2)
    golden(f"frontend/{name}.json", text + "\n")
    assert from_json(data) == from_json(text) == from_json("\ufeff" + text) == graph
    assert to_json(from_json(text)) == data


def test_the_form():
    data = mlp()
    assert data["fusedsl"] == 1
    assert data["params"][0] == {
        "name": "x", "dtype": "bf16", "shape": ["M", 4096], "weight": False,
    }  # fmt: skip
    assert data["nodes"][0] == {
        "op": "rms_norm",
        "operands": ["x", "gain"],
        "attrs": {"eps": 1e-6},
        "results": ["h"],
        "types": ["bf16[M, 4096]"],
    }
    assert data["outputs"] == ["y"]


def test_only_what_is_needed_must_be_written():
    data = {
        "fusedsl": 1,
        "name": "f",
        "params": [{"name": "x", "dtype": "fp32", "shape": ["2*M", 8]}],
        "nodes": [{"op": "mul", "operands": ["x", 2], "results": ["y"]}],
        "outputs": ["y"],
    }
    text = "kernel f(x: fp32[2*M, 8]) -> (y: fp32[2*M, 8]) { y = x * 2; }"
    assert from_json(data) == parse(text)


def test_left_out_operands_are_null():
    text = "kernel f(x: fp32[M, 8], b: fp32[8]) -> (y: fp32[M, 8]) { y = layer_norm(x, bias=b); }"
    data = to_json(parse(text))
    assert data["nodes"][0]["operands"] == ["x", None, "b"]
    assert from_json(data) == parse(text)


def test_dimensions_in_attributes():
    data = to_json(parse(PARTIALS))
    assert data["nodes"][1]["attrs"] == {"tiles": "T"}
    assert data["nodes"][2]["attrs"] == {"width": 512}


def test_nodes_carry_the_statement_they_print_as():
    assert from_json(mlp()).nodes[0].origin == "h = rms_norm(x, gain, eps=1e-06);"


def test_the_schema_is_json_schema():
    schema = json_schema()
    json.dumps(schema)
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == {"fusedsl", "name", "params", "nodes", "outputs"}
    assert set(schema["$defs"]) == {"ParamModel", "NodeModel"}


@pytest.mark.parametrize(
    ("path", "value", "pointer", "expected"),
    [
        (("fusedsl",), 2, "/fusedsl", "the version of the form, 1"),
        (("fusedsl",), True, "/fusedsl", "the version of the form, 1"),
        (("name",), "a b", "/name", "a name"),
        (("name",), 3, "/name", "a name"),
        (("params",), {}, "/params", "a list, each item an object"),
        (("params", 0), 3, "/params/0", "an object with 'name'"),
        (("params", 0, "dtype"), 16, "/params/0/dtype", "'bf16', 'fp16' or 'fp32'"),
        (("params", 0, "shape"), 3, "/params/0/shape", "a list, each item an integer"),
        (("params", 0, "shape", 0), 1.5, "/params/0/shape/0", "a multiple '2*M'"),
        (("params", 0, "shape", 0), True, "/params/0/shape/0", "a multiple '2*M'"),
        (("params", 0, "shape", 0), "M*2", "/params/0/shape/0", "a multiple '2*M'"),
        (("params", 0, "weight"), 1, "/params/0/weight", "true or false"),
        (("nodes", 0, "op"), None, "/nodes/0/op", "the name of a block"),
        (("nodes", 0, "operands", 1), True, "/nodes/0/operands/1", "a name, a number or null"),
        (("nodes", 0, "operands", 1), ["x"], "/nodes/0/operands/1", "a name, a number or null"),
        (("nodes", 0, "operands", 1), "x y", "/nodes/0/operands/1", "a name, a number or null"),
        (("nodes", 0, "operands"), "x", "/nodes/0/operands", "a list, each item a name"),
        (("nodes", 0, "attrs"), [], "/nodes/0/attrs", "an object of attributes"),
        (("nodes", 0, "attrs", "eps"), None, "/nodes/0/attrs/eps", "a number, true, false"),
        (("nodes", 0, "results"), [], "/nodes/0/results", "a list, each item a name"),
        (("nodes", 0, "results", 0), "1x", "/nodes/0/results/0", "a name"),
        (("nodes", 0, "types", 0), "bf16", "/nodes/0/types/0", "a type as 'bf16[M, 4096]'"),
        (("nodes", 0, "types"), [], "/nodes/0/types", "a type for each result"),
        (("outputs",), [], "/outputs", "a list, each item a name"),
        (("outputs", 0), 1, "/outputs/0", "a name"),
        (("name",), "x" * 200, "/name", "a name"),
    ],
)
def test_f0103_a_wrong_value(path: tuple[Any, ...], value: Any, pointer: str, expected: str):
    data = mlp()
    part = data
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    error = errors(data)
    assert [(d.code, d.pointer) for d in error.diagnostics] == [("F0103", pointer)]
    assert expected in (error.diagnostics[0].expected or "")
    assert "write" in (error.diagnostics[0].fix or "")


def test_f0103_missing_and_unknown_keys():
    data = mlp()
    del data["name"]
    data["nodes"][1]["typ"] = []
    data["params"][0]["a/b~c"] = 1
    error = errors(data)
    assert [(d.code, d.pointer) for d in error.diagnostics] == [
        ("F0103", ""),
        ("F0103", "/params/0/a~1b~0c"),
        ("F0103", "/nodes/1/typ"),
    ]
    assert "add 'name'" in str(error)
    assert "json_schema()" in str(error)


@pytest.mark.parametrize(
    ("text", "line", "column"), [("", 1, 1), ("{\n 'a': 1}", 2, 2), ('{"a":1,}', 1, 8)]
)
def test_f0103_text_that_is_no_json(text: str, line: int, column: int):
    error = errors(text)
    assert error.codes == ("F0103",)
    span = error.diagnostics[0].span
    assert span is not None
    assert (span.line, span.column) == (line, column)
    assert "JSON library" in str(error)


@pytest.mark.parametrize(
    "text",
    ["[" * 200_000, '{"a": NaN}', '{"a": -Infinity}', "9" * 5000, '{"a": 1, "a": 2}', '"\\ud800"'],
)
def test_f0103_json_that_is_no_graph(text: str):
    assert set(errors(text).codes) == {"F0103"}


@pytest.mark.parametrize("value", [None, 3, [], "null", (), object(), b"{}", {"name": {1, 2}}])
def test_f0103_values_that_are_no_graph(value: Any):
    assert set(errors(value).codes) == {"F0103"}


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("params", 0, "dtype"), "bf61", [("F0206", "/params/0/dtype")]),
        (("params", 0, "shape", 1), 0, [("F0105", "/params/0/shape/1")]),
        (("params", 0, "shape", 1), 2**31, [("F0105", "/params/0/shape/1")]),
        (("params", 1, "name"), "x", [("F0203", "/params/1/name")]),
        (("params", 0, "shape"), ["B", "M", 4], [("F0403", "/params/0/shape")]),
        (("params", 0, "shape"), [], [("F0403", "/params/0/shape")]),
        (("nodes", 0, "op"), "rmsnorm", [("F0201", "/nodes/0/op")]),
        (("nodes", 0, "operands", 0), "xx", [("F0202", "/nodes/0/operands/0")]),
        (("nodes", 1, "results", 0), "h", [("F0203", "/nodes/1/results/0")]),
        (("nodes", 0, "operands"), ["x", "gain", "x"], [("F0301", "/nodes/0/operands/2")]),
        (("nodes", 1, "operands"), ["h"], [("F0301", "/nodes/1")]),
        (("nodes", 1, "operands"), ["h", 2], [("F0205", "/params/2/name"),
                                              ("F0301", "/nodes/1/operands/1")]),
        (("nodes", 0, "attrs", "epsi"), 1, [("F0302", "/nodes/0/attrs/epsi")]),
        (("nodes", 0, "attrs", "gain"), 1, [("F0302", "/nodes/0/attrs/gain")]),
        (("nodes", 0, "attrs", "eps"), "tiny", [("F0303", "/nodes/0/attrs/eps")]),
        (("nodes", 0, "attrs", "eps"), 1e300, [("F0105", "/nodes/0/attrs/eps")]),
        (("nodes", 0, "attrs", "eps"), 10**400, [("F0105", "/nodes/0/attrs/eps")]),
        (("nodes", 4, "operands", 1), 10**400, [("F0105", "/nodes/4/operands/1")]),
        (("nodes", 4, "operands", 1), float("nan"), [("F0105", "/nodes/4/operands/1")]),
        (("nodes", 0, "types", 0), "bf16[M, 8]", [("F0405", "/nodes/0/types/0")]),
        (("params", 2, "shape", 1), 4097, [("F0402", "/nodes/1/operands/1")]),
        (("params", 2, "dtype"), "fp16", [("F0401", "/nodes/1/operands/1")]),
        (("outputs", 0), "z", [("F0204", "/outputs/0")]),
        (("outputs", 0), "x", [("F0205", "/nodes/4/results/0"), ("F0204", "/outputs/0")]),
    ],
)  # fmt: skip
def test_what_the_graph_says(path: tuple[Any, ...], value: Any, expected: list[tuple[str, str]]):
    data = mlp()
    part = data
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    assert sorted(placed(data)) == sorted(expected)


def test_f0304_a_missing_attribute():
    data = to_json(parse(MOMENTS))
    del data["nodes"][1]["attrs"]["index"]
    assert placed(data) == [("F0304", "/nodes/1")]


def test_f0301_a_wrong_number_of_results():
    data = to_json(parse(MOMENTS))
    data["nodes"][0]["results"] = ["mean"]
    assert ("F0301", "/nodes/0/results/0") in placed(data)


def test_all_independent_mistakes_in_one_go():
    data = mlp()
    data["params"][0]["dtype"] = "bf61"
    data["nodes"][1]["op"] = "liner"
    data["nodes"][3]["operands"][1] = "w_dwn"
    data["nodes"].append({"op": "relu", "operands": ["gain"], "results": ["unread"]})
    assert sorted(placed(data)) == [
        ("F0201", "/nodes/1/op"),
        ("F0202", "/nodes/3/operands/1"),
        ("F0205", "/nodes/5/results/0"),
        ("F0206", "/params/0/dtype"),
    ]


def test_f0104_every_early_read_is_told():
    data = mlp()
    data["nodes"].reverse()
    assert placed(data) == [("F0104", f"/nodes/{i}/operands/0") for i in range(4)]
    assert "move /nodes/1 before /nodes/0" in str(errors(data))


def test_f0104_other_checks_go_on_in_the_right_order():
    data = mlp()
    data["nodes"].reverse()
    data["nodes"][4]["attrs"]["eps"] = "x"
    data["nodes"][0]["operands"][1] = "gain_"
    codes = [c for c, _ in placed(data)]
    assert codes == ["F0104"] * 4 + ["F0303", "F0202"]


def test_f0104_a_node_that_reads_itself():
    data = mlp()
    data["nodes"][0]["operands"][0] = "h"
    error = errors(data)
    assert ("F0104", "/nodes/0/operands/0") in [(d.code, d.pointer) for d in error.diagnostics]
    assert "the nodes form a cycle: h <- h" in str(error)


def test_f0104_two_cycles_are_two_mistakes():
    data = mlp()
    extra = [
        {"op": "relu", "operands": ["q"], "results": ["p"]},
        {"op": "relu", "operands": ["p"], "results": ["q"]},
        {"op": "add", "operands": ["r", "q"], "results": ["r"]},
        {"op": "add", "operands": ["r", "x"], "results": ["s"]},
    ]
    data["nodes"] += copy.deepcopy(extra)
    data["outputs"].append("s")
    assert placed(data) == [("F0104", "/nodes/5/operands/0"), ("F0104", "/nodes/7/operands/0")]


def test_a_long_cycle_is_told_in_short():
    nodes = [
        {"op": "relu", "operands": [f"a{(i + 1) % 50}"], "results": [f"a{i}"]} for i in range(50)
    ]
    data = {**mlp(), "nodes": nodes, "outputs": ["a0"]}
    message = next(d.message for d in errors(data).diagnostics if d.code == "F0104")
    assert "a0 <- a1 <- a2" in message
    assert "..." in message
    assert message.endswith("a49 <- a0")


def test_no_more_than_a_hundred_mistakes():
    data = mlp()
    data["nodes"] = [
        {"op": "relu", "operands": [f"b{i}"], "results": [f"a{i}"]} for i in range(300)
    ]
    assert len(errors(data).diagnostics) == 100


def test_the_file_is_named():
    with pytest.raises(FusedslError) as caught:
        from_json("{", file="g.json")
    assert "g.json:1:2" in str(caught.value)
