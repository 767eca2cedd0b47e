"""Syntax errors in human words, with the fix that fits what people and models tend to write."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence

from fusedsl.diagnostics import Diagnostic, closest
from fusedsl.frontend.problems import shown
from fusedsl.frontend.syntax import lark

EXAMPLE = "kernel f(x: bf16[M, 64]) -> (y: bf16[M, 64]) { y = x * 2.0; }"

_WORDS = {
    "NAME": "a name",
    "NUMBER": "a number",
    "INT": "an integer",
    "DTYPE": "a dtype (bf16, fp16, fp32)",
    "$END": "the end",
}
_OPERATORS = {"PLUS", "MINUS", "STAR", "SLASH"}

_NO_CONTROL_FLOW = "the language has no control flow: write statements 'name = expression;'"
_FIRST_WORDS = {
    "return": "leave 'return' out: the outputs are named in the signature",
    "let": "leave 'let' out: write 'name = expression;'",
    "var": "leave 'var' out: write 'name = expression;'",
    "const": "leave 'const' out: write 'name = expression;'",
    "def": f"start with 'kernel': {EXAMPLE}",
    "fn": f"start with 'kernel': {EXAMPLE}",
    "if": _NO_CONTROL_FLOW,
    "for": _NO_CONTROL_FLOW,
    "while": _NO_CONTROL_FLOW,
    "import": "leave 'import' out: all blocks are known by name",
    "from": "leave 'import' out: all blocks are known by name",
}
_QUOTES = "write names without quotes"
_CHARACTERS = {
    "'": _QUOTES,
    '"': _QUOTES,
    "`": _QUOTES,
    "@": "for a product of matrices call matmul(x, w) or linear(x, w)",
    "[": "values have no indices: call a block on the whole value",
    ".": "names have no dots: call a block by its name, block(x)",
    ":": "types are written in the signature only: leave the type out",
    "{": "a statement is 'name = expression;'; there are no inner blocks",
    "%": "the operators are + - * /",
    "^": "the operators are + - * /; write x * x for a square",
    "<": "the operators are + - * /",
    ">": "the operators are + - * /",
    "!": "the operators are + - * /",
    "\0": "the text holds a NUL byte: save it as UTF-8",
}


def unexpected(
    got: str, accepts: Collection[str], before: Sequence[str], in_header: bool
) -> Diagnostic:
    """A token that does not fit; `got` is empty at the end, `before` is what was read."""
    accepts = set(accepts)
    if in_header and "$END" in accepts:
        accepts = (accepts - {"$END"}) | {"LBRACE"}
    what = _described(got)
    return Diagnostic(
        "F0101",
        f"unexpected {what}" if got else "the text ends too early",
        expected=_expected(accepts),
        got=what if got else "the end",
        where="in the signature" if in_header else "in a statement",
        fix=_fix(got, accepts, before, in_header),
    )


def missing_semicolon() -> Diagnostic:
    """A statement without its end."""
    return Diagnostic(
        "F0101",
        "a statement does not end with ';'",
        expected="';'",
        got="the next statement, or the end",
        where="after a statement",
        fix="add ';' here",
        suggestion=";",
    )


def missing_brace(brace: str) -> Diagnostic:
    """A body that does not start, or does not end."""
    return Diagnostic(
        "F0101",
        f"'{brace}' is missing",
        expected=f"'{brace}'",
        got="the end",
        fix="put the statements between '{' and '}' after the signature"
        if brace == "{"
        else "close the kernel with '}'",
        suggestion=brace,
    )


def no_statements() -> Diagnostic:
    """A kernel with an empty body."""
    return Diagnostic(
        "F0101",
        "the kernel has no statements",
        expected="at least one statement",
        got="'}'",
        fix="assign each output: 'name = expression;'",
    )


def text_after_kernel(word: str) -> Diagnostic:
    """More text after the closing brace."""
    second = word.startswith("kernel")
    return Diagnostic(
        "F0101",
        "a second kernel in one text" if second else "text after the kernel",
        expected="one kernel, closed by '}'",
        got=f"'{shown(word)}'",
        fix="put each kernel in a text of its own" if second else "take out what follows '}'",
    )


def unknown_qualifier(word: str) -> Diagnostic:
    """A word before a dtype that is not `weight`."""
    near = closest(word, ["weight"])
    return Diagnostic(
        "F0101",
        f"'{shown(word)}' is not a qualifier",
        expected="'weight', or nothing, before the dtype",
        got=f"'{shown(word)}'",
        fix="did you mean 'weight'?" if near else f"leave '{shown(word)}' out",
        suggestion=near,
    )


def only_renames(target: str, name: str) -> Diagnostic:
    """`a = b;`."""
    return Diagnostic(
        "F0101",
        f"'{target} = {name};' only gives '{name}' another name",
        expected="a call, or an operator",
        got=f"the name '{name}'",
        fix=f"use '{name}' where '{target}' is used, or assign the expression to '{target}'",
    )


def only_a_number(target: str, number: str) -> Diagnostic:
    """`a = 2;`."""
    return Diagnostic(
        "F0101",
        f"'{shown(target)}' is only a number",
        expected="a call, or an operator between tensors",
        got=f"the number {shown(number)}",
        fix=f"write {shown(number)} where '{target}' is used",
    )


def _described(got: str) -> str:
    if len(got) == 1 and not got.isascii():
        name = unicodedata.name(got, "unnamed character")
        return f"U+{ord(got):04X} ({name.lower()})"
    if len(got) == 1 and not got.isprintable():
        return "NUL byte" if got == "\0" else f"control character U+{ord(got):04X}"
    return f"'{shown(got)}'"


def _expected(accepts: set[str]) -> str:
    patterns = {t.name: str(t.pattern.value).replace("\\", "") for t in lark().terminals}
    words: list[str] = []
    if accepts >= _OPERATORS and "NAME" not in accepts:
        accepts = accepts - _OPERATORS
        words.append("an operator")
    first = [_WORDS[name] for name in _WORDS if name in accepts]
    rest = sorted(f"'{patterns.get(name, name)}'" for name in accepts if name not in _WORDS)
    words = [*first, *words, *rest]
    return " or ".join(words) if len(words) < 3 else ", ".join(words[:-1]) + " or " + words[-1]


def _fix(got: str, accepts: set[str], before: Sequence[str], in_header: bool) -> str:
    if "KERNEL" in accepts:
        return f"start with the signature: {EXAMPLE}"
    if len(got) == 1 and not got.isascii():
        return "write the program in ASCII; other characters belong in comments"
    known = _signature_fix(got, accepts) if in_header else _statement_fix(got, accepts, before)
    if known:
        return known
    single = _expected(accepts)
    if " or " not in single and "," not in single:
        return f"write {single} here" if got else f"add {single}"
    if "RPAR" in accepts and got in (";", ""):
        return "close the parenthesis with ')'"
    if not got:
        return "finish the statement: 'name = expression;'"
    return f"take out or replace {_described(got)}"


def _signature_fix(got: str, accepts: set[str]) -> str | None:
    if got in ("'", '"', "`", "\0"):
        return _CHARACTERS[got]
    if accepts & {"COLON", "WEIGHT", "LSQB"}:
        return "a parameter is written 'x: bf16[M, 4096]' or 'w: weight bf16[N, K]'"
    if "__ANON_0" in accepts:
        return "name the outputs after the parameters: '-> (y: bf16[M, 4096])'"
    return None


def _statement_fix(got: str, accepts: set[str], before: Sequence[str]) -> str | None:
    first, last = (before[0], before[-1]) if before else (got, "")
    if first in _FIRST_WORDS:
        return _FIRST_WORDS[first]
    if got in _CHARACTERS:
        return _CHARACTERS[got]
    if got == "*" and last.endswith("*"):
        return "there is no power: write x * x"
    if got == "/" and last.endswith("/"):
        return "a comment starts with '#'"
    if got == "=" and "EQUAL" not in accepts:
        return "one statement assigns once: 'name = expression;'"
    if got == ";" and not last:
        return "take out the ';'"
    return None
