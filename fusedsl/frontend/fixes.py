"""From diagnostics of a text to diagnostics with fixes, root causes only.

Each code has a function that knows its repairs, the best one first. A fix is certain only where
the text leaves one reading; where several are possible, a trial reading decides, and if it does
not, all of them are offered as guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from fusedsl.diagnostics import (
    BLANK,
    CERTAIN,
    GUESS,
    Diagnostic,
    Fix,
    FusedslError,
    Related,
    Span,
    TextEdit,
)
from fusedsl.frontend import call_fixes, name_fixes, syntax_fixes, type_fixes
from fusedsl.frontend.facts import Facts
from fusedsl.ir import NAME

Fixer = Callable[[Facts, Diagnostic], Iterator[Fix]]

FIXERS: dict[str, Fixer] = {
    "F0101": syntax_fixes.syntax,
    "F0104": name_fixes.out_of_order,
    "F0201": name_fixes.unknown_block,
    "F0202": name_fixes.unknown_name,
    "F0203": name_fixes.defined_twice,
    "F0204": name_fixes.unassigned,
    "F0205": name_fixes.unused,
    "F0206": name_fixes.unknown_dtype,
    "F0301": call_fixes.operands,
    "F0302": call_fixes.unknown_attribute,
    "F0303": call_fixes.attribute_value,
    "F0304": call_fixes.missing_attribute,
    "F0401": type_fixes.dtypes,
    "F0402": type_fixes.shapes,
    "F0404": type_fixes.unbound,
    "F0405": type_fixes.declared_otherwise,
    "F0407": type_fixes.not_a_weight,
}

#: Mistakes that follow from another one.
_CONSEQUENCES = ("F0202", "F0205")
#: Mistakes that others follow from.
_ROOTS = ("F0202", "F0203", "F0204", "F0301")
#: Mistakes that are reported where their certain repair is, if that is somewhere else.
_MOVED = ("F0204", "F0401", "F0402")

_RANK = {CERTAIN: 0, GUESS: 1, BLANK: 2}


def with_fixes(error: FusedslError, facts: Facts) -> FusedslError:
    """The same error: each diagnostic with its fixes, those that only follow from another left
    out, those that have one certain repair placed at it."""
    items = [_fixed(facts, item) for item in error.diagnostics]
    roots = _without_consequences(facts, items)
    placed = [_moved(item) for item in roots]
    placed.sort(key=lambda d: (d.span.line, d.span.column) if d.span else (1 << 30, 0))
    return FusedslError(placed, error.source, error.truncated)


def _fixed(facts: Facts, item: Diagnostic) -> Diagnostic:
    fixer = FIXERS.get(item.code)
    if fixer is None or item.span is None:
        return item
    found = sorted(dict.fromkeys(fixer(facts, item)), key=lambda fix: _RANK[fix.applicability])
    return replace(item, fixes=tuple(found[:5]))


def _without_consequences(facts: Facts, items: list[Diagnostic]) -> list[Diagnostic]:
    """Drop what a certain fix of another mistake mends too; the other one points to it."""
    kept: list[Diagnostic] = list(items)
    for index, root in enumerate(items):
        fix = certain_fix(root)
        if fix is None or root.code not in _ROOTS or kept[index] is not root:
            continue
        for other, item in enumerate(items):
            if other == index or item.code not in _CONSEQUENCES or item.span is None:
                continue
            if kept[other] is item and _mends(facts, fix, root, item):
                kept[other] = root
                related = Related(item.message, item.span)
                kept[index] = replace(kept[index], related=(*kept[index].related, related))
    return [new for new, old in zip(kept, items, strict=True) if new.span == old.span]


def _mends(facts: Facts, fix: Fix, root: Diagnostic, item: Diagnostic) -> bool:
    assert item.span is not None
    name = facts.text(item.span)
    edits = [edit for edit in fix.edits if isinstance(edit, TextEdit)]
    if item.code == "F0202" and root.code == "F0202":
        return False
    if any(name in NAME.findall(edit.replacement) for edit in edits):
        return True
    return any(_holds(edit.span, item.span) for edit in edits)


def _holds(outer: Span, inner: Span) -> bool:
    start = (outer.line, outer.column) <= (inner.line, inner.column)
    return start and (inner.end_line, inner.end_column) <= (outer.end_line, outer.end_column)


def _moved(item: Diagnostic) -> Diagnostic:
    """The mistake at its repair, where it has one certain repair at another place."""
    fix = certain_fix(item)
    if fix is None or item.span is None or item.code not in _MOVED:
        return item
    edit = fix.edits[0]
    if not isinstance(edit, TextEdit) or _touch(edit.span, item.span):
        return item
    span = edit.span
    if (span.line, span.column) == (span.end_line, span.end_column):
        return item
    related = Related(f"found here: {item.message}", item.span)
    seen = (related, *item.related)
    said = fix.title if fix.title.startswith("declare") else item.fix
    return replace(item, span=span, fix=said, suggestion=None, related=seen)


def _touch(a: Span, b: Span) -> bool:
    """Whether two spans share a character."""
    begins = (a.line, a.column) < (b.end_line, b.end_column)
    return begins and (b.line, b.column) < (a.end_line, a.end_column)


def certain_fix(item: Diagnostic) -> Fix | None:
    """The fix that a program may apply: the first, if it is certain."""
    return item.fixes[0] if item.fixes and item.fixes[0].certain else None
