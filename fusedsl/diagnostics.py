"""Every error a user can meet: a stable code, what, expected, got, where, and the fix.

A mistake in a program is never a Python traceback. Stages collect `Diagnostic` objects in a
`Diagnostics` bag, so that all independent mistakes are reported together, and raise one
`FusedslError` that carries them. `docs/diagnostics.md` lists the codes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

#: Stable codes. A code is never reused for another mistake.
CODES: dict[str, str] = {
    # F01xx: reading text, JSON or files
    "F0101": "syntax error",
    "F0102": "file cannot be read",
    "F0103": "JSON does not have the shape of a graph",
    "F0104": "statements out of order or in a cycle",
    "F0105": "dimension or literal out of range",
    # F02xx: names
    "F0201": "unknown block",
    "F0202": "unknown name",
    "F0203": "name defined twice",
    "F0204": "output is never assigned",
    "F0205": "value is never used",
    "F0206": "unknown dtype",
    # F03xx: calls
    "F0301": "wrong number of operands",
    "F0302": "unknown attribute",
    "F0303": "attribute value not allowed",
    "F0304": "attribute missing",
    # F04xx: types
    "F0401": "dtype mismatch",
    "F0402": "shape mismatch",
    "F0403": "rank not supported",
    "F0404": "dimension is not bound by any parameter",
    "F0405": "declared output type differs from the computed one",
    "F0406": "dimension cannot be halved",
    "F0407": "operand must be a weight",
    # F05xx: calling a program
    "F0501": "missing or unexpected tensor",
    "F0502": "tensor has the wrong dtype",
    "F0503": "tensor has the wrong shape",
    "F0504": "tensor is on the wrong device",
    "F0505": "bound weight changed and was consumed",
    "F0506": "not a tensor",
    "F0507": "unknown option",
    "F0508": "gradients are not supported",
    # F06xx: building and running
    "F0601": "shared memory over the limit of the target",
    "F0602": "unknown target",
    "F0603": "kernel failed to compile",
    "F0604": "the interpreter cannot run in this process",
    "F0605": "registers spilled",
    "F0606": "a cold call cannot be captured",
    "F0607": "an optional package is not installed",
    "F0608": "limit of time or memory exceeded",
    "F0609": "a worker process died",
    # F09xx: broken invariants inside fusedsl
    "F0901": "invalid graph",
}


@dataclass(frozen=True)
class Span:
    """A half-open piece of the source text; lines and columns count from 1."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True)
class Place:
    """Where a mistake is: a span of the text, a pointer into a JSON graph, or neither."""

    span: Span | None = None
    pointer: str | None = None


NOWHERE = Place()


@dataclass(frozen=True)
class Related:
    """A second place that a mistake involves, and what it has to do with it."""

    message: str
    span: Span | None = None
    pointer: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON form, every key present."""
        return asdict(self)


@dataclass(frozen=True)
class TextEdit:
    """The text of `span` becomes `replacement`; an empty span is an insertion before it."""

    span: Span
    replacement: str

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class JsonEdit:
    """One operation of a JSON Patch (RFC 6902): "replace", "add", "remove" or "move".

    `source` is where "move" takes the value from.
    """

    op: str
    pointer: str
    value: str | int | float | bool | None = None
    source: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The operation as RFC 6902 writes it."""
        if self.op == "move":
            return {"op": "move", "from": self.source, "path": self.pointer}
        value = {} if self.op == "remove" else {"value": self.value}
        return {"op": self.op, "path": self.pointer, **value}


Edit = TextEdit | JsonEdit

#: How far a fix may be trusted: CERTAIN ones may be applied by a program, GUESS is one of several
#: readings, BLANK leaves something for the author to fill in.
CERTAIN, GUESS, BLANK = "machine-applicable", "maybe-incorrect", "has-placeholders"


@dataclass(frozen=True)
class Fix:
    """A repair as exact edits, to be applied together or not at all."""

    title: str
    edits: tuple[Edit, ...]
    applicability: str = GUESS

    @property
    def certain(self) -> bool:
        """Whether a program may apply it without asking."""
        return self.applicability == CERTAIN

    def to_json(self) -> dict[str, Any]:
        """The JSON form; an edit has `span` and `replacement`, or is an RFC 6902 operation."""
        return {
            "title": self.title,
            "applicability": self.applicability,
            "edits": [edit.to_json() for edit in self.edits],
        }


@dataclass(frozen=True)
class Diagnostic:
    """One mistake.

    `where` names the place in words (a statement, an operand); `span` places it in text and
    `pointer` (RFC 6901) in a JSON graph. `fix` says what to do; `suggestion` is the exact text
    that would replace the span, where one is known. `related` are other places that belong to the
    mistake, `fixes` the repairs as edits, the best one first.
    """

    code: str
    message: str
    expected: str | None = None
    got: str | None = None
    where: str | None = None
    fix: str | None = None
    span: Span | None = None
    pointer: str | None = None
    suggestion: str | None = None
    file: str | None = None
    related: tuple[Related, ...] = ()
    fixes: tuple[Fix, ...] = ()

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"unregistered diagnostic code {self.code!r}")

    def at(self, place: Place) -> Diagnostic:
        """The same mistake, placed; what `place` does not know stays as it is."""
        return replace(self, span=place.span or self.span, pointer=place.pointer or self.pointer)

    def to_json(self) -> dict[str, Any]:
        """The JSON form: every key always present, `null` where unknown."""
        return {
            "code": self.code,
            "title": CODES[self.code],
            "message": self.message,
            "expected": self.expected,
            "got": self.got,
            "where": self.where,
            "fix": self.fix,
            "suggestion": self.suggestion,
            "file": self.file,
            "pointer": self.pointer,
            "span": None if self.span is None else asdict(self.span),
            "related": [item.to_json() for item in self.related],
            "fixes": [fix.to_json() for fix in self.fixes],
        }

    def render(self, source: str | None = None) -> str:
        """Text for a person; with `source`, the offending line and a caret under it."""
        return self._render(None if source is None else source.split("\n"))

    def _render(self, source_lines: list[str] | None) -> str:
        lines = [f"error[{self.code}]: {self.message}"]
        place = _place(self)
        if place:
            lines.append(f"  --> {place}")
        if source_lines is not None and self.span is not None:
            lines += _caret(source_lines, self.span)
        for label in ("where", "expected", "got", "fix"):
            text = getattr(self, label)
            if text:
                lines.append(f"  {label + ':':<10}{text}")
        for item in self.related:
            place = _place(replace(self, span=item.span, pointer=item.pointer))
            lines.append(f"  {'see:':<10}{place}: {item.message}")
        return "\n".join(lines)


def _place(item: Diagnostic) -> str:
    parts: list[str] = []
    if item.file:
        parts.append(item.file)
    if item.span:
        parts.append(f"{item.span.line}:{item.span.column}")
    elif item.pointer:
        parts.append(item.pointer)
    return ":".join(parts)


#: Characters of a source line that are shown, at most.
_SHOWN = 120


def _caret(lines: list[str], span: Span) -> list[str]:
    if not 1 <= span.line <= len(lines):
        return []
    text = lines[span.line - 1]
    end = span.end_column if span.end_line == span.line else len(text) + 1
    start = max(0, span.column - 1 - _SHOWN // 2) if len(text) > _SHOWN else 0
    shown = "".join(c if c.isprintable() else " " for c in text[start : start + _SHOWN])
    column = span.column - 1 - start
    width = max(1, min(end - span.column, len(shown) - column))
    gutter = f"{span.line:>4} | "
    return [f"{gutter}{shown}".rstrip(), " " * (len(gutter) + column) + "^" * width]


class FusedslError(Exception):
    """One or more diagnostics. `str()` renders them all, with carets where the text is known."""

    def __init__(
        self,
        diagnostics: Iterable[Diagnostic] | Diagnostic,
        source: str | None = None,
        truncated: bool = False,
    ):
        items = [diagnostics] if isinstance(diagnostics, Diagnostic) else list(diagnostics)
        if not items:
            raise ValueError("FusedslError needs at least one diagnostic")
        self.diagnostics: tuple[Diagnostic, ...] = tuple(items)
        self.source = source
        self.truncated = truncated
        lines = None if source is None else source.split("\n")
        parts = [item._render(lines) for item in items]  # pyright: ignore[reportPrivateUsage]
        if truncated:
            parts.append(f"stopped after {len(items)} mistakes")
        super().__init__("\n\n".join(parts))

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes, in order of report."""
        return tuple(item.code for item in self.diagnostics)


#: A bag takes this many mistakes; a stage that finds it full stops looking.
LIMIT = 100


@dataclass
class Diagnostics:
    """A bag that stages fill, so that independent mistakes come out together."""

    file: str | None = None
    items: dict[Diagnostic, None] = field(default_factory=dict[Diagnostic, None])

    def add(self, item: Diagnostic) -> None:
        """Record one diagnostic, once; nothing beyond `LIMIT`."""
        if self.file and not item.file:
            item = replace(item, file=self.file)
        if not self.full:
            self.items[item] = None

    @property
    def full(self) -> bool:
        """Whether `LIMIT` mistakes were found."""
        return len(self.items) >= LIMIT

    def __bool__(self) -> bool:
        return bool(self.items)

    def __iter__(self) -> Iterator[Diagnostic]:
        return iter(self.items)

    def raise_if_any(self, source: str | None = None) -> None:
        """Raise `FusedslError` with everything collected, in source order."""
        if not self.items:
            return
        ordered = sorted(
            self.items,
            key=lambda d: (d.span.line, d.span.column) if d.span else (1 << 30, 0),
        )
        raise FusedslError(ordered, source, truncated=self.full)


#: Names compared with a mistyped one, and names listed, at most.
_COMPARED, _LISTED = 1000, 40


def single_near(name: str, known: Iterable[str]) -> str | None:
    """The one known name that a mistyped one can have meant, or None where there are several.

    Alike up to case and underscores, else within one edit (two from six characters on), else the
    only one that begins the name or is begun by it.
    """
    names = [n for n in dict.fromkeys(known) if n != name][:_COMPARED]
    plain = _plain(name)
    alike = [n for n in names if _plain(n) == plain]
    reach = min(2 if len(plain) >= 6 else 1, len(plain) - 1)
    distances = {n: _distance(plain, _plain(n), reach) for n in names}
    for step in range(1, reach + 1):
        alike = alike or [n for n, d in distances.items() if d == step]
    begun = [n for n in names if min(len(n), len(name)) > 2]
    alike = alike or [n for n in begun if n.startswith(name) or name.startswith(n)]
    return alike[0] if len(alike) == 1 else None


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _distance(a: str, b: str, limit: int) -> int:
    """Edits from a to b, two neighbours swapped being one; anything above `limit` is limit + 1."""
    if abs(len(a) - len(b)) > limit:
        return limit + 1
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, char in enumerate(a, 1):
        row = [i]
        for j, other in enumerate(b, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (char != other))
            if i > 1 and j > 1 and char == b[j - 2] and a[i - 2] == other:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        if min(row) > limit:
            return limit + 1
        before, last = last, row
    return last[-1]


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name a mistyped one most likely meant, or None."""
    plain = _plain(name)
    alike: dict[str, str] = {}
    for other in known:
        if abs(len(other) - len(name)) <= 2 + len(name) // 2 and len(alike) < _COMPARED:
            alike.setdefault(_plain(other), other)
    matches = difflib.get_close_matches(plain, alike, n=1, cutoff=0.6)
    return alike[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str], kind: str) -> str:
    """A fix line: the nearest known name, or the whole (sorted) list."""
    names = sorted(known)
    match = closest(name, names)
    if match:
        return f"did you mean '{match}'?"
    if not names:
        return f"there are no {kind} here"
    more = ", ..." if len(names) > _LISTED else ""
    return f"{kind}: {', '.join(names[:_LISTED])}{more}"
