from __future__ import annotations

import re
from pathlib import Path

import pytest

from fusedsl.diagnostics import (
    CODES,
    LIMIT,
    NOWHERE,
    Diagnostic,
    Diagnostics,
    FusedslError,
    Place,
    Span,
    closest,
    did_you_mean,
)
from fusedsl.frontend import parse

PAGE = Path(__file__).parent.parent / "docs" / "diagnostics.md"


def item(**changes: object) -> Diagnostic:
    fields = {"code": "F0202", "message": "'xx' is not defined here", **changes}
    return Diagnostic(**fields)  # type: ignore[arg-type]


def test_codes_are_registered():
    assert all(re.fullmatch(r"F0\d{3}", code) for code in CODES)
    assert list(CODES) == sorted(CODES)
    with pytest.raises(ValueError, match="unregistered"):
        item(code="F9999")


def test_the_json_form_has_every_key():
    full = item(span=Span(1, 2, 1, 4), file="a.fdsl", fix="f").to_json()
    assert full["span"] == {"line": 1, "column": 2, "end_line": 1, "end_column": 4}
    assert full["title"] == "unknown name"
    assert item().to_json().keys() == full.keys()
    assert item().to_json()["span"] is None


def test_rendering_with_the_source():
    text = item(
        expected="a name", got="xx", where="in 'y'", fix="did you mean 'x'?",
        span=Span(2, 5, 2, 7), file="a.fdsl",
    ).render("a\ny = xx;\n")  # fmt: skip
    assert text == (
        "error[F0202]: 'xx' is not defined here\n"
        "  --> a.fdsl:2:5\n"
        "   2 | y = xx;\n"
        "           ^^\n"
        "  where:    in 'y'\n"
        "  expected: a name\n"
        "  got:      xx\n"
        "  fix:      did you mean 'x'?"
    )


def caret_line(source: str, span: Span) -> tuple[str, str]:
    _, _, line, caret = item(span=span).render(source).split("\n")[:4]
    return line, caret


def test_the_caret_stays_under_its_word():
    line, caret = caret_line("\ty\0= xx;", Span(1, 6, 1, 8))
    assert line[caret.index("^") : caret.rindex("^") + 1] == "xx"
    line, caret = caret_line("a" * 5000 + "xx" + "b" * 5000, Span(1, 5001, 1, 5003))
    assert len(line) < 140
    assert line[caret.index("^") : caret.rindex("^") + 1] == "xx"


def test_a_span_of_several_lines_is_underlined_to_the_end_of_the_first():
    line, caret = caret_line("y = xx +\n x;", Span(1, 5, 2, 3))
    assert line[caret.index("^") :] == "xx +"


def test_no_caret_without_the_line():
    assert "^" not in item(span=Span(9, 1, 9, 2)).render("one line")
    assert "^" not in item().render("one line")
    assert "--> 9:1" in item(span=Span(9, 1, 9, 2)).render()
    assert "--> /nodes/0" in item(pointer="/nodes/0").render()


def test_lines_are_those_of_editors_and_the_parser():
    line, _ = caret_line("a\x0bb\u2028c\ny = xx", Span(2, 5, 2, 7))
    assert line.endswith("y = xx")


def test_a_mistake_gets_its_place():
    placed = item().at(Place(Span(1, 1, 1, 2), "/a"))
    assert (placed.span, placed.pointer) == (Span(1, 1, 1, 2), "/a")
    assert placed.at(NOWHERE) == placed


def test_an_error_holds_diagnostics():
    error = FusedslError([item(), item(code="F0203")])
    assert error.codes == ("F0202", "F0203")
    assert str(error).count("error[") == 2
    assert FusedslError(item()).codes == ("F0202",)
    with pytest.raises(ValueError, match="at least one"):
        FusedslError([])


def test_a_bag_keeps_each_mistake_once_in_source_order():
    bag = Diagnostics(file="a.fdsl")
    assert not bag
    bag.raise_if_any()
    late, early = item(span=Span(2, 1, 2, 2)), item(span=Span(1, 5, 1, 6))
    for one in (item(), late, early, late):
        bag.add(one)
    assert len(list(bag)) == 3
    with pytest.raises(FusedslError) as caught:
        bag.raise_if_any("text")
    assert [d.span.line if d.span else None for d in caught.value.diagnostics] == [1, 2, None]
    assert all(d.file == "a.fdsl" for d in caught.value.diagnostics)
    assert caught.value.source == "text"
    assert not caught.value.truncated


def test_a_bag_has_an_end():
    bag = Diagnostics()
    for number in range(LIMIT + 5):
        bag.add(item(message=str(number)))
    assert bag.full
    with pytest.raises(FusedslError, match=f"stopped after {LIMIT} mistakes") as caught:
        bag.raise_if_any()
    assert len(caught.value.diagnostics) == LIMIT


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("rmsnorm", "rms_norm"),
        ("RMSNorm", "rms_norm"),
        ("Linear", "linear"),
        ("lienar", "linear"),
        ("softcaps", "softcap"),
        ("zzz", None),
        ("", None),
    ],
)
def test_near_names(name: str, meant: str | None):
    known = ["rms_norm", "linear", "softcap", "x"]
    assert closest(name, known) == meant
    expected = f"did you mean '{meant}'?" if meant else "blocks: linear, rms_norm, softcap, x"
    assert did_you_mean(name, known, "blocks") == expected


def test_lists_of_names_are_short():
    assert did_you_mean("zzz", [], "blocks") == "there are no blocks here"
    text = did_you_mean("zzz", [f"name{i}" for i in range(5000)], "names")
    assert text.endswith(", ...")
    assert len(text) < 500


def rows() -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").split("\n")
    return [line[2:-2].split(" | ") for line in lines if re.match(r"\| F\d{4} \|", line)]


def test_the_page_lists_exactly_the_codes():
    assert {code: title for code, title, *_ in rows()} == CODES
    assert [code for code, *_ in rows()] == list(CODES)
    assert all(len(row) == 4 and all(row) for row in rows())


@pytest.mark.parametrize(
    ("code", "statements"),
    [(row[0], row[2].strip("`")) for row in rows() if re.fullmatch(r"`\w+ = .*;`", row[2])],
)
def test_the_examples_of_the_page_are_mistakes(code: str, statements: str):
    signature = "kernel f(x: bf16[M, 64], w: weight bf16[64, 64]) -> (y: bf16[M, 64])"
    with pytest.raises(FusedslError) as caught:
        parse(f"{signature} {{ {statements} }}")
    assert code in caught.value.codes
