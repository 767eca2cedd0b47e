"""Repairs of syntax: one small edit at the place, which makes the text readable there.

What people and models write is known (a type on a statement, `let`, quotes, a parenthesis too
few). Each candidate is tried; the first that leaves fewer syntax errors is the fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fusedsl.diagnostics import CERTAIN, GUESS, Diagnostic, Fix, TextEdit, single_near
from fusedsl.frontend.facts import Facts, blank_before
from fusedsl.frontend.syntax import NameRef

#: Words that other languages put in front of an assignment.
_LEADING = re.compile(r"(let|var|const|auto|val)\s+")
#: Tokens that are only ever too many, never a value.
_PUNCTUATION = re.compile(r"[)\];,:}>]")
#: What may be missing in front of the token, in this order.
_MISSING = (")", "]", ",", ";", ":", "(", "[", "=", "->", "{")
#: Characters that stand for another one.
_LOOKALIKE = {"\u2212": "-", "\u2013": "-", "\u00d7": "*", "\u2217": "*", "\u00f7": "/"}


def syntax(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """F0101: the first edit that helps."""
    assert item.span is not None
    for title, edits in _candidates(facts, item):
        if facts.improves(edits, "F0101"):
            yield Fix(title, tuple(edits), CERTAIN)
            return
    yield from _guesses(facts, item)


def _guesses(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    if item.suggestion and item.span:
        inserted = item.suggestion in (";", "{", "}")
        start = facts.start(item.span)
        edit = facts.edit(start, start, item.suggestion)
        if not inserted:
            edit = facts.over(item.span, item.suggestion)
        yield Fix(f"write '{item.suggestion}'", (edit,), GUESS)


def _candidates(facts: Facts, item: Diagnostic) -> Iterator[tuple[str, list[TextEdit]]]:
    assert item.span is not None
    text, start = facts.source.text, facts.start(item.span)
    end = facts.source.offset(item.span.end_line, item.span.end_column)
    got = text[start:end]
    if item.suggestion in (";", "{", "}"):
        new = "\n}" if item.suggestion == "}" else item.suggestion
        yield f"add '{item.suggestion}'", [facts.edit(start, start, new)]
        return
    if "is not a qualifier" in item.message:
        if item.suggestion and single_near(got, ["weight"]):
            yield "write 'weight'", [facts.over(item.span, "weight")]
        return
    if "another name" in item.message:
        yield from _alias(facts, start)
        return
    yield from _habits(facts, start, end, got, item.expected or "")
    yield from _tokens(facts, item, start, end, got)


def _alias(facts: Facts, at: int) -> Iterator[tuple[str, list[TextEdit]]]:
    """`a = f(x); y = a;`: assign y directly, and read it where a was read."""
    statement = facts.statement_at(at)
    if statement is None or not isinstance(statement.value, NameRef):
        return
    target, source = statement.targets[0].text, statement.value.word.text
    gone = facts.edit(blank_before(facts.source.text, statement.start), statement.end, "")
    makers = [w for s in facts.statements if s is not statement for w in s.targets]
    makers = [w for w in makers if w.text == source]
    reads = [w for w in facts.reads(source) if w.start != statement.value.start]
    if len(makers) == 1 and source not in facts.outputs:
        edits = [facts.edit(w.start, w.end, target) for w in (*makers, *reads)]
        yield f"assign '{target}' there", [*edits, gone]
    if target not in facts.outputs:
        later = [facts.edit(w.start, w.end, source) for w in facts.reads(target)]
        yield f"use '{source}' for '{target}'", [*later, gone]


def _habits(
    facts: Facts, start: int, end: int, got: str, expected: str
) -> Iterator[tuple[str, list[TextEdit]]]:
    """What other languages write."""
    text = facts.source.text
    first = _statement_start(text, start)
    leading = _LEADING.match(text, first)
    if leading and leading.end() >= start >= first:
        yield f"leave '{leading[1]}' out", [facts.edit(first, leading.end(), "")]
    if got == ":" or text[start : start + 1] == ":":
        typed = re.compile(r"\s*:[^=;{}]*(?==)").match(text, start)
        if typed:
            yield "leave the type out", [facts.edit(start, typed.end(), " ")]
    if got in ("'", '"', "`"):
        close = text.find(got, end)
        if close > 0 and re.fullmatch(r"\w+", text[end:close]):
            edits = [facts.edit(start, end, ""), facts.edit(close, close + 1, "")]
            yield f"write {text[end:close]} without quotes", edits
    if got in _LOOKALIKE:
        yield f"write '{_LOOKALIKE[got]}'", [facts.edit(start, end, _LOOKALIKE[got])]
    if got == "=" and text[start - 1 : start] == "=":
        yield "write '='", [facts.edit(start, end, "")]
    if got == "=" and text[start - 1 : start] == ":":
        yield "write '='", [facts.edit(start - 1, end, "=")]
    slashes = re.compile("//").search(text, max(0, start - 1), start + 2)
    if got == "/" and slashes:
        yield "a comment starts with '#'", [facts.edit(slashes.start(), slashes.end(), "#")]
    word = re.compile(r"[A-Za-z_]\w*").match(text, start)
    foreign = ("def", "fn", "func")
    if word and "'kernel'" in expected and (word[0] in foreign or single_near(word[0], ["kernel"])):
        yield "write 'kernel'", [facts.edit(start, word.end(), "kernel")]


def _tokens(
    facts: Facts, item: Diagnostic, start: int, end: int, got: str
) -> Iterator[tuple[str, list[TextEdit]]]:
    """One token more in front, or this one less."""
    text, expected = facts.source.text, item.expected or ""
    behind = start if start >= len(text.rstrip()) else len(text[:start].rstrip())
    for token in _MISSING:
        if f"'{token}'" in expected or (token in "([{" and token in expected):
            new = f" {token} " if token in ("=", "->", "{") else token
            yield f"add '{token}'", [facts.edit(behind, behind, new)]
    if "operator" in expected and got and re.match(r"[\w(]", got):
        yield "add ','", [facts.edit(behind, behind, ",")]
    if "a name" in expected and len(facts.unread) == 1 and item.where == "in a statement":
        name = facts.unread[0]
        if name in facts.params and got in (",", ")"):
            yield f"pass '{name}'", [facts.edit(start, start, name)]
    if _PUNCTUATION.fullmatch(got) and not _leaves_a_gap(facts, item, got):
        yield f"take '{got}' out", [facts.edit(start, end, "")]
    if "what follows" in (item.fix or "") and re.fullmatch(r"[}\s]*", text[start:]):
        yield "take out what follows '}'", [facts.edit(start, len(text.rstrip()), "")]


def _leaves_a_gap(facts: Facts, item: Diagnostic, got: str) -> bool:
    """Whether what is missing in front of a comma may be a dimension or an operand: then taking
    the comma out is no repair."""
    return got == "," and (item.where == "in the signature" or bool(facts.unread))


def _statement_start(text: str, at: int) -> int:
    """Where the statement begins that an offset lies in, as far as the text tells."""
    begun = max(text.rfind(mark, 0, at) for mark in ";{}")
    match = re.compile(r"(?:\s|#[^\n]*)*").match(text, begun + 1)
    return match.end() if match else begun + 1
