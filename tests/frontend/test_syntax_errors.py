"""Texts that do not parse: what is said, where, and that reading goes on."""

from __future__ import annotations

import pytest

from tests.frontend.programs import LLAMA_MLP, SIGNATURE, errors, marked, program


@pytest.mark.parametrize(
    ("text", "at", "expected", "fix"),
    [
        (program("y = relu(x;"), ";", "')'", "close the parenthesis with ')'"),
        (program("y = relu(x)) ;"), ")", "';'", "take out or replace ')'"),
        (program("y = x @ x;"), "@", "an operator", "matmul(x, w)"),
        (program("y = x ** 2;"), "*", "a name, a number, '(' or '-'", "write x * x"),
        (program("y = x // 2;"), "/", "a name, a number", "a comment starts with '#'"),
        (program("y = x ^ x;"), "^", "an operator", "write x * x for a square"),
        (program("y = x[0];"), "[", "an operator", "no indices"),
        (program("y = 'x';"), "'", "a name", "without quotes"),
        (program("y = x.relu();"), ".", "an operator", "call a block by its name"),
        (program("y: bf16 = relu(x);"), ":", "',' or '='", "in the signature only"),
        (program("y = z = relu(x);"), "=", "an operator", "one statement assigns once"),
        (program("return x;"), "x", "',' or '='", "outputs are named in the signature"),
        (program("let y = relu(x);"), "y", "',' or '='", "leave 'let' out"),
        (program("if x; y = relu(x);"), "x", "',' or '='", "no control flow"),
        (program("y = relu(x);;"), ";", "a name", "take out the ';'"),
        (program("y = relu(x) & x;"), "&", "an operator", "take out or replace '&'"),
        (program("y = \0x;"), "\0", "a name", "NUL byte"),
        (program("y = \x07x;"), "\x07", "a name", "U+0007"),
        (program("y = x \u2212 x;"), "\u2212", "an operator", "in ASCII"),
        (program("y = x + ;"), ";", "a name, a number", "take out or replace ';'"),
        ("hello", "hello", "'kernel'", "start with the signature: kernel f("),
        ("def f(x):\n  return x", "def", "'kernel'", "start with the signature: kernel f("),
        ("kernel f() -> (y: bf16[4]) { y = relu(x); }", ")", "a name", "write a name here"),
        (SIGNATURE.replace("x:", "x") + "y = relu(x);}", "bf16", "':'", "'x: bf16[M, 4096]'"),
        (SIGNATURE.replace("->", ":") + "y = relu(x);}", ":", "'->'", "name the outputs"),
        (SIGNATURE.replace("M,", "-M,") + "y = relu(x);}", "-", "a name or an integer", "replace"),
        (SIGNATURE.replace("M,", "M*2,") + "y = relu(x);}", "*", "',' or ']'", "take out"),
        (SIGNATURE.replace("x:", "'x':") + "y = relu(x);}", "'", "a name", "without quotes"),
        (SIGNATURE.replace("bf16[M, 64])", "wieght bf16[M, 64])", 1) + "y = relu(x);}", "wieght",
         "'weight'", "did you mean 'weight'?"),
        (SIGNATURE.replace("bf16[M, 64])", "const bf16[M, 64])", 1) + "y = relu(x);}", "const",
         "'weight'", "leave 'const' out"),
        (program("y = relu(x);") + "kernel g", "k", "one kernel", "a text of its own"),
        (program("y = relu(x);") + "}", "}", "one kernel", "take out what follows"),
        (f"{SIGNATURE} }}", "{", "at least one statement", "name = expression;"),
        (program("z = x; y = z + x;"), "x", "a call, or an operator", "use 'x' where 'z' is used"),
        (program("z = -2; y = z + x;"), "-2", "a call, or an operator", "write -2 where 'z'"),
        (program("y = relu(" + "x" * 200 + ");"), "x" * 200, "at most 128", "a shorter name"),
    ],
)  # fmt: skip
def test_one_mistake(text: str, at: str, expected: str, fix: str):
    error = errors(text)
    found = [d for d in error.diagnostics if d.code == "F0101"]
    assert len(found) == 1, error
    assert marked(text, error, error.diagnostics.index(found[0])) == at
    assert expected in (found[0].expected or "")
    assert fix in f"{found[0].fix} {found[0].message}"


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("", "ends too early", "start with the signature"),
        (" \n# nothing\n", "ends too early", "start with the signature"),
        (SIGNATURE.rstrip("{"), "'{' is missing", "put the statements between"),
        (SIGNATURE.rstrip("{") + "y = relu(x);", "unexpected 'y'", "write '{' here"),
        (f"{SIGNATURE} y = relu(x);", "'}' is missing", "close the kernel with '}'"),
        ("kernel f(x: bf16[M, 64]) ->", "ends too early", "add '('"),
        (f"{SIGNATURE} y = relu(x);\n y", "ends too early", "finish the statement"),
    ],
)
def test_a_text_that_ends_too_early(text: str, message: str, fix: str):
    error = errors(text)
    item = next(d for d in error.diagnostics if message in d.message)
    assert item.code == "F0101"
    assert fix in (item.fix or "")


def test_a_missing_semicolon_is_placed_after_the_statement():
    text = "kernel f(x: bf16[M, 64]) -> (y: bf16[M, 64]) {\n  a = relu(x)\n  y = a + a\n}"
    error = errors(text)
    assert error.codes == ("F0101", "F0101")
    places = [(d.span.line, d.span.column) for d in error.diagnostics if d.span]
    assert places == [(2, 14), (3, 12)]
    assert error.diagnostics[0].suggestion == ";"


def test_reading_goes_on_after_a_mistake():
    text = LLAMA_MLP.replace("eps=1e-6);", "eps==1e-6);").replace("w_down)", "w_dwn)")
    text = text.replace("gain: weight bf16", "gain: weihgt bf17")
    error = errors(text)
    found = [(d.code, marked(text, error, i)) for i, d in enumerate(error.diagnostics)]
    assert found == [("F0101", "weihgt"), ("F0206", "bf17"), ("F0101", "="),
                     ("F0202", "w_dwn")]  # fmt: skip


def test_statements_are_read_though_the_signature_is_not():
    text = "kernel f(x; bf16[M, 64]) -> (y: bf16[M, 64]) { y = relu(x }; "
    error = errors(text)
    assert error.codes == ("F0101", "F0101", "F0101")
    assert marked(text, error) == ";"


def test_what_an_unreadable_statement_assigns_is_taken_as_defined():
    assert errors(program("a = relu(x]; y = a + x;")).codes == ("F0101",)


def test_an_alias_of_an_unknown_name_is_one_mistake():
    assert errors(program("z = xx; y = z + x;")).codes == ("F0202",)


def test_several_second_kernels_are_one_mistake():
    error = errors(LLAMA_MLP + LLAMA_MLP + LLAMA_MLP)
    assert error.codes == ("F0101",)
    assert error.diagnostics[0].span is not None
    assert error.diagnostics[0].span.line == LLAMA_MLP.count("\n") + 1 + 1
