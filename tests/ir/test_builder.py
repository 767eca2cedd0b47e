from __future__ import annotations

import pytest

from fusedsl.diagnostics import FusedslError, Place, Span
from fusedsl.ir import Call, Dim, GraphBuilder, arrange_call, infer_types, tensor
from tests.ir.blocks import LIBRARY, SCALE, SPREAD, TIMES


def builder() -> GraphBuilder:
    b = GraphBuilder(LIBRARY)
    b.add_param("x", tensor("bf16", "M", 8))
    return b


def codes(action) -> tuple[str, ...]:
    with pytest.raises(FusedslError) as caught:
        action()
    return caught.value.codes


def test_a_call_in_order():
    call, problems = arrange_call(SCALE, ["x"], {"by": 2, "shift": 1})
    assert not problems
    assert call == Call(
        ("x", 1.0),
        (
            ("by", 2.0),
            ("times", 1),
            ("kind", "plain"),
            ("on", True),
            ("size", Dim(1)),
            ("out_dtype", "auto"),
        ),
    )


@pytest.mark.parametrize(
    ("positional", "named", "found", "fix"),
    [
        (["x", "y", "z"], {"by": 1}, ["F0301"], "call it as scale(x, [shift]"),
        (["x", "y", 2.0], {}, ["F0301"], "name the attribute: by=2"),
        ([], {"by": 1}, ["F0301"], "add x"),
        (["x"], {}, ["F0304"], "add by=..."),
        (["x"], {"by": 0}, ["F0303"], "write by= with a number > 0"),
        (["x"], {"by": 1, "kind": "fanzy"}, ["F0303"], "did you mean 'fancy'?"),
        (["x"], {"by": 1, "knd": "x"}, ["F0302"], "did you mean 'kind'?"),
        (["x"], {"by": 1, "shfit": "x"}, ["F0302"], "did you mean 'shift'?"),
        (["x"], {"by": 1, "x": "x"}, ["F0301"], "leave out x="),
        (["x"], {"by": 1e300}, ["F0105"], "write a number > 0 within the range of fp32"),
        (["x"], {"by": 1e-300}, ["F0105"], "write a number > 0 within the range of fp32"),
        (["x"], {"by": 1, "size": 0}, ["F0105"], "write a dimension"),
        (["x"], {"by": 1, "size": "0*M"}, ["F0105"], "write a dimension"),
        ([2.0], {"by": 1}, ["F0301"], "name the attribute: by=2"),
        (["x", 1e300], {"by": 1}, ["F0105"], "write a number within"),
        ([], {"x": "x", "byy": 1}, ["F0302", "F0304"], "did you mean 'by'?"),
        (["x"], {"zzz": 1, "on": 3, "times": 9}, ["F0302", "F0303", "F0303", "F0304"], "attri"),
    ],
)
def test_mistakes_in_a_call(positional, named, found, fix):
    call, problems = arrange_call(SCALE, positional, named)
    assert call is None
    assert [p.code for p in problems] == found
    assert fix in (problems[0].fix or "")


def test_a_call_of_numbers_only():
    _, problems = arrange_call(TIMES, [2.0, 3.0], {})
    assert [p.code for p in problems] == ["F0301"]
    assert "no tensor operand" in problems[0].message
    _, problems = arrange_call(SPREAD, [2.0], {})
    assert problems[0].fix == "pass a tensor for 'x'"


def test_problems_have_the_places_of_their_parts():
    places = {
        "": Place(pointer="/call"),
        "by": Place(pointer="/by"),
        "*": Place(pointer="/3"),
        "kind": Place(Span(1, 2, 1, 3)),
    }
    _, problems = arrange_call(SCALE, ["x", "y", "z"], {"by": "q", "kind": 3, "on": 3}, places)
    assert [(p.pointer, p.span) for p in problems] == [
        ("/3", None),
        ("/by", None),
        (None, Span(1, 2, 1, 3)),
        ("/call", None),
    ]


def test_types_follow_out_dtype():
    call, _ = arrange_call(TIMES, ["x", 2.0], {"out_dtype": "fp32"})
    assert call is not None
    assert infer_types(TIMES, call, {"x": tensor("bf16", "M", 8)}) == (tensor("fp32", "M", 8),)


def test_nodes_are_added_with_origin_and_span():
    b = builder()
    b.origin, b.span = "h = x * 2;", Span(1, 1, 1, 9)
    assert b.call("times", "x", 2, name="h") == "h"
    low, high = b.call_all(SPREAD, ["h"], {}, ["low", "high"])
    assert (low, high) == ("low", "high")
    assert b.call(TIMES, "h", low) == "times_1"
    assert b.call_all("spread", ["h"], {}) == ("low_1", "high_1")
    b.outputs = ["times_1"]
    graph = b.finish()
    assert graph.nodes[0].origin == "h = x * 2;"
    assert graph.nodes[0].span == Span(1, 1, 1, 9)
    assert graph.types["high"] == tensor("fp32", "M", 1)


def test_fresh_names_are_unused():
    b = builder()
    b.reserved = {"h_1", "h_3"}
    b.types["h_2"] = b.types["x"]
    assert b.fresh("h") == "h_4"
    assert b.fresh("h") == "h_4"
    b.reserved.add("h_4")
    assert b.fresh("h") == "h_5"
    assert b.fresh("g") == "g_1"


def test_mistakes_are_raised():
    b = builder()
    assert codes(lambda: b.add_param("x", tensor("bf16", 4))) == ("F0203",)
    assert codes(lambda: b.call("scal", "x")) == ("F0201",)
    assert codes(lambda: b.call("scale", "xx", by=1)) == ("F0202",)
    assert codes(lambda: b.call("scale", "x", shift="xx", by=1)) == ("F0202",)
    assert codes(lambda: b.call("scale", "x")) == ("F0304",)
    assert codes(lambda: b.call("times", "x", 2, name="x")) == ("F0203",)
    assert codes(lambda: b.call_all("times", ["x", 2], {}, ["a", "b"])) == ("F0301",)
    b.add_param("narrow", tensor("bf16", 4))
    assert codes(lambda: b.call("times", "x", "narrow")) == ("F0402",)
    assert not b.nodes


def test_a_type_problem_is_located():
    b = builder()
    b.span = Span(3, 1, 3, 9)
    b.add_param("narrow", tensor("bf16", 4))
    with pytest.raises(FusedslError) as caught:
        b.call("times", "x", "narrow")
    (item,) = caught.value.diagnostics
    assert item.where == "in 'times', operand 'b'"
    assert (item.expected, item.got, item.fix) == ("8", "4", "make them equal")
    assert item.span == Span(3, 1, 3, 9)
