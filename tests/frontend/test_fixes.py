"""Fixes as data: what they hold, which are certain, and what they make of a text or a graph."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from fusedsl.diagnostics import (
    CERTAIN,
    GUESS,
    Diagnostic,
    Fix,
    JsonEdit,
    Span,
    TextEdit,
    single_near,
)
from fusedsl.frontend import from_json, parse, to_json
from fusedsl.frontend.json_patch import patched
from fusedsl.frontend.repair import apply, apply_fixes, mistakes, repair
from tests.frontend.programs import LLAMA_MLP, SIGNATURE, program

TWO = "kernel f(x: bf16[M, 64], g: weight bf16[64]) -> (y: bf16[M, 64]) {"


@pytest.mark.parametrize(
    ("broken", "whole"),
    [
        (program("y = silu(relu(x), x);"), program("y = silu(relu(x));")),
        (program("y = softcap(x, 30);"), program("y = softcap(x, cap=30);")),
        (program("y = cast(x, bf16);"), program("y = cast(x, dtype=bf16);")),
        (program("y = gelu(x, tanh);"), program("y = gelu(x, approximate=tanh);")),
        (program("y = relu(x, x=x);"), program("y = relu(x);")),
        (program("y = rms_norm(x, eps=1, eps=1);"), program("y = rms_norm(x, eps=1);")),
        (program("m = row_moments(x); y = cast(x + m, dtype=bf16);"),
         program("m, var_1 = row_moments(x); y = cast(x + m, dtype=bf16);")),
        (program("y = rms_norm(x);", TWO), program("y = rms_norm(x);", SIGNATURE)),
        (program("y = rms_norm(x, gian=g);", TWO), program("y = rms_norm(x, gain=g);", TWO)),
        (program("y = x * gg;", TWO), program("y = x * g;", TWO)),
        (program("y = relu(x); y = silu(y);"), program("y_1 = relu(x); y = silu(y_1);")),
        (program("x = relu(x); y = silu(x);"), program("x_1 = relu(x); y = silu(x_1);")),
        (program("y: bf16 = relu(x);"), program("y = relu(x);")),
        (program("let y = relu(x);"), program("y = relu(x);")),
        (program("y = gelu(x, approximate='tanh');"), program("y = gelu(x, approximate=tanh);")),
        (program("y == relu(x);"), program("y = relu(x);")),
        (program("y := relu(x);"), program("y = relu(x);")),
        (program("y = relu(x));"), program("y = relu(x);")),
        (program("y = relu(x);;"), program("y = relu(x);")),
        (program("y = relu(x);") + "}", program("y = relu(x);")),
        (program("y = x \u2212 1;"), program("y = x - 1;")),
        (program("y = relu(x); // done\n"), program("y = relu(x); # done\n")),
        (program("y = x + 1;").replace("kernel", "def"), program("y = x + 1;")),
        (program("y = x + 1;").replace("kernel", "kernal"), program("y = x + 1;")),
        (program("y = x + 1;").replace("bf16[M, 64])", "wieght bf16[M, 64])", 1),
         program("y = x + 1;").replace("bf16[M, 64])", "weight bf16[M, 64])", 1)),
        (program("y = x + 1;").replace("(y: bf16[M", "(y: bf16[Q"), program("y = x + 1;")),
        (program("y = relu(x);").removesuffix("}"), program("y = relu(x);")),
    ],
)  # fmt: skip
def test_certain_fixes_of_a_text(broken: str, whole: str):
    found = mistakes(broken)
    assert all(d.fixes and d.fixes[0].certain for d in found), found
    assert parse(apply(broken, found)) == parse(whole)


@pytest.mark.parametrize(
    "text",
    [
        program("y = zzzz(x);"),
        program("y = x * q;"),
        program("y = softcap(x);"),
        program("y = linear(x);"),
        program("y = rms_norm(x, eps=-1);"),
        program("if x; y = relu(x);"),
        program("a = relu(x); b = silu(x); y = a + c;"),
        "kernel f(x: bf16[M, 64], g_1: bf16[64], g_2: bf16[64]) -> (y: bf16[M, 64]) {"
        " y = x * g_1 + g_2 + g_3; }",
    ],
)
def test_what_has_several_readings_is_left_to_the_author(text: str):
    first = mistakes(text)[0]
    assert not any(fix.certain for d in mistakes(text) for fix in d.fixes if d is first)


def test_a_misspelt_name_is_one_mistake_that_points_to_what_it_leaves_unread():
    (item,) = mistakes(LLAMA_MLP.replace("(h, w_gate_up)", "(h, w_gateup)"))
    assert item.code == "F0202"
    (related,) = item.related
    assert related.message == "parameter 'w_gate_up' is never used"
    assert related.span is not None and related.span.line == 3


def test_a_dimension_of_one_declaration_is_found_by_trial():
    (item,) = mistakes(LLAMA_MLP.replace("gain: weight bf16[4096]", "gain: weight bf16[4095]"))
    assert item.code == "F0402"
    assert item.span is not None and item.span.line == 2
    assert item.fixes[0].title == "declare 'gain: bf16[4096]'"
    assert [r.message[:10] for r in item.related] == ["found here"]


def test_the_json_form_of_fixes():
    (item,) = mistakes(program("y = rmsnorm(x);"))
    assert item.to_json()["fixes"] == [
        {
            "title": "write 'rms_norm'",
            "applicability": "machine-applicable",
            "edits": [
                {
                    "span": {"line": 1, "column": 52, "end_line": 1, "end_column": 59},
                    "replacement": "rms_norm",
                }
            ],
        }
    ]
    assert JsonEdit("remove", "/a").to_json() == {"op": "remove", "path": "/a"}
    moved = JsonEdit("move", "/a", source="/b").to_json()
    assert moved == {"op": "move", "from": "/b", "path": "/a"}


def test_of_overlapping_fixes_the_first_is_applied():
    def fix(column: int, end: int, text: str) -> Fix:
        return Fix(text, (TextEdit(Span(1, column, 1, end), text),), CERTAIN)

    assert apply_fixes("abcdef", [fix(1, 3, "X"), fix(2, 4, "Y"), fix(5, 6, "Z")]) == "XcdZf"
    assert apply_fixes("abc", [fix(2, 2, "1"), fix(2, 2, "2")]) == "a1bc"
    guess = Diagnostic("F0202", "m", fixes=(Fix("g", (), GUESS),))
    assert apply("abc", [guess]) == "abc"


def test_near_names():
    assert single_near("rmsnorm", ["rms_norm", "row_mean"]) == "rms_norm"
    assert single_near("gian", ["gain", "g"]) == "gain"
    assert single_near("epsilon", ["eps", "cast"]) == "eps"
    assert single_near("w_1x", ["w_1", "w_2"]) == "w_1"
    assert single_near("w_3", ["w_1", "w_2"]) is None
    assert single_near("N", ["M"]) is None
    assert single_near("", ["M"]) is None


def graph() -> Any:
    return to_json(parse(LLAMA_MLP))


def broken_graphs() -> dict[str, tuple[Any, str]]:
    made: dict[str, tuple[Any, str]] = {}

    def add(name: str, pointer: str, **changes: Any) -> None:
        data = graph()
        for path, value in changes.items():
            holder = data
            *steps, last = path.split("__")
            for step in steps:
                holder = holder[int(step)] if step.isdecimal() else holder[step]
            if last.isdecimal():
                holder[int(last)] = value
            else:
                holder[last] = value
        made[name] = (data, pointer)

    add("block", "/nodes/0/op", nodes__0__op="rmsnorm")
    add("name", "/nodes/1/operands/1", nodes__1__operands__1="w_gateup")
    add("dtype", "/params/0/dtype", params__0__dtype="bfloat16")
    add("attribute", "/nodes/0/attrs/epsilon", nodes__0__attrs={"epsilon": 1e-6})
    add("choice", "/nodes/0/attrs/cast", nodes__0__attrs={"eps": 1e-6, "cast": "lama"})
    add("layout", "/nodes/3/operands/1", nodes__3__op="matmul")
    add("type", "/nodes/4/types/0", nodes__4__types=["fp32[M, 4096]"])
    add("output", "/outputs/0", nodes__4__results=["out"])
    add("position", "/nodes/0/operands/2", nodes__0__attrs={},
        nodes__0__operands=["x", "gain", 1e-6])  # fmt: skip
    data = graph()
    data["nodes"].insert(0, data["nodes"].pop(1))
    made["order"] = (data, "/nodes/0/operands/0")
    data = graph()
    data["params"].append({"name": "b", "dtype": "bf16", "shape": [64], "weight": True})
    made["unused"] = (data, "/params/4/name")
    return made


@pytest.mark.parametrize("name", broken_graphs())
def test_certain_fixes_of_a_graph(name: str):
    data, pointer = broken_graphs()[name]
    text = json.dumps(data)
    (item,) = mistakes(text)
    assert item.pointer == pointer
    assert item.fixes and item.fixes[0].certain
    result = repair(text)
    assert result.ok and result.rounds == 1
    assert from_json(result.text) == from_json(graph())


def test_patching_leaves_the_data_alone_and_survives_wrong_pointers():
    data = graph()
    before = copy.deepcopy(data)
    edits = (JsonEdit("remove", "/nodes/99"), JsonEdit("replace", "/x/y", 1), JsonEdit("add", "/z"))
    assert patched(data, [Fix("", edits, CERTAIN)]).keys() == {*data, "z"}
    assert data == before


def test_a_parameter_that_is_unread_for_another_reason_is_not_taken_out():
    text = LLAMA_MLP.replace("(x, gain, eps", "(x, , eps")
    assert repair(text).text == LLAMA_MLP
    text = LLAMA_MLP.replace("rms_norm(x, gain, eps", "zzzz(x, eps")
    assert [f.certain for d in mistakes(text) for f in d.fixes] == [False]
