"""Applying fixes: the certain ones of a text or a JSON graph, never for the worse."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusedsl.diagnostics import Diagnostic, Fix, FusedslError, TextEdit
from fusedsl.frontend.json_graph import from_json
from fusedsl.frontend.json_patch import patched
from fusedsl.frontend.text import parse

#: Rounds of reading and applying, at most: a fix may bring others to light.
ROUNDS = 10


@dataclass(frozen=True)
class Repaired:
    """What became of a program: its text, the fixes applied, the mistakes that are left."""

    text: str
    applied: tuple[Fix, ...]
    left: tuple[Diagnostic, ...]
    rounds: int

    @property
    def ok(self) -> bool:
        """Whether no mistake is left."""
        return not self.left


def mistakes(text: str) -> tuple[Diagnostic, ...]:
    """The diagnostics of a text or, where it begins with `{`, of a JSON graph."""
    try:
        (from_json if is_json(text) else parse)(text)
    except FusedslError as error:
        return error.diagnostics
    return ()


def is_json(text: str) -> bool:
    """Whether a text is meant as a JSON graph."""
    return text.removeprefix("\ufeff").lstrip().startswith("{")


def certain(diagnostics: Iterable[Diagnostic]) -> list[Fix]:
    """The fix of each mistake that has a certain one, in order."""
    return [d.fixes[0] for d in diagnostics if d.fixes and d.fixes[0].certain]


def apply(text: str, diagnostics: Iterable[Diagnostic]) -> str:
    """The text with the certain fixes of its diagnostics; of two that overlap, the first."""
    return apply_fixes(text, certain(diagnostics))


def apply_fixes(text: str, fixes: Sequence[Fix]) -> str:
    """The text after these fixes, each applied whole or, if it overlaps an earlier one, not."""
    if is_json(text):
        return _apply_json(text, fixes)
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    body = text.removeprefix(mark)
    starts = _line_starts(body)
    taken: list[tuple[int, int, str]] = []
    for fix in fixes:
        edits = [_offsets(edit, starts) for edit in fix.edits if isinstance(edit, TextEdit)]
        new = [edit for edit in edits if edit not in taken]
        if not any(_overlap(a, b) for a in new for b in taken):
            taken += new
    for start, end, replacement in sorted(taken, key=lambda e: (e[0], e[1]), reverse=True):
        body = body[:start] + replacement + body[end:]
    return mark + body


def _line_starts(text: str) -> list[int]:
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def _offsets(edit: TextEdit, starts: Sequence[int]) -> tuple[int, int, str]:
    span = edit.span
    start = starts[span.line - 1] + span.column - 1
    return start, starts[span.end_line - 1] + span.end_column - 1, edit.replacement


def _overlap(a: tuple[int, int, str], b: tuple[int, int, str]) -> bool:
    """Whether two edits meet; two insertions at one place do."""
    if a[:2] == b[:2]:
        return True
    return a[0] < b[1] and b[0] < a[1]


def repair(text: str, *, rounds: int = ROUNDS) -> Repaired:
    """Read and apply until nothing certain is left, or nothing gets better."""
    applied: list[Fix] = []
    left = mistakes(text)
    done = 0
    for _ in range(rounds):
        fixes = certain(left)
        if not fixes:
            break
        better = _step(text, fixes, left)
        if better is None:
            break
        done += 1
        text, left, used = better
        applied += used
    return Repaired(text, tuple(applied), left, done)


def _step(
    text: str, fixes: list[Fix], before: Sequence[Diagnostic]
) -> tuple[str, tuple[Diagnostic, ...], list[Fix]] | None:
    """All fixes at once; if that leaves more mistakes, the first that alone does not."""
    for chosen in (fixes, *([fix] for fix in fixes)):
        new = apply_fixes(text, chosen)
        left = mistakes(new)
        if new != text and len(left) <= len(before):
            return new, left, list(chosen)
    return None


def _apply_json(text: str, fixes: Sequence[Fix]) -> str:
    try:
        data = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return text
    return json.dumps(patched(data, fixes), indent=2) + "\n"
