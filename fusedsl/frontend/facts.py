"""What a repair of a text may ask: the tree, who defines and reads a name, and a trial reading."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fusedsl.diagnostics import CERTAIN, Diagnostic, Fix, Place, Span, TextEdit
from fusedsl.frontend.assemble import Assembler, Failure
from fusedsl.frontend.syntax import (
    Call,
    Declared,
    Expression,
    Keyword,
    NameRef,
    Program,
    Source,
    Statement,
    Word,
)

#: Trial readings for one text, at most, and characters read in all of them.
TRIALS, TRIED_CHARACTERS = 48, 200_000


@dataclass
class Facts:
    """A text with mistakes, read as far as that went. Tree and assembler are None without a
    readable signature. `read` gives the diagnostics of another text, without fixes."""

    source: Source
    program: Program | None
    out: Assembler | None
    items: Sequence[Diagnostic]
    read: Callable[[str], Sequence[Diagnostic]]
    trials: int = field(init=False)

    def __post_init__(self) -> None:
        self.trials = min(TRIALS, TRIED_CHARACTERS // (1 + len(self.source.text)))

    # Places

    def start(self, span: Span) -> int:
        """Where a span starts, as an offset."""
        return self.source.offset(span.line, span.column)

    def text(self, span: Span) -> str:
        """The text of a span."""
        return self.source.text[self.start(span) : self.source.offset(*_end(span))]

    def edit(self, start: int, end: int, replacement: str) -> TextEdit:
        """text[start:end] becomes `replacement`."""
        return TextEdit(self.source.span(start, end), replacement)

    def over(self, span: Span, replacement: str) -> TextEdit:
        """The text of a span becomes `replacement`."""
        return TextEdit(span, replacement)

    # The signature

    @cached_property
    def params(self) -> dict[str, Declared]:
        """The parameters by name; of two with one name, the first."""
        table: dict[str, Declared] = {}
        for declared in self.program.header.params if self.program else ():
            table.setdefault(declared.name.text, declared)
        return table

    @cached_property
    def outputs(self) -> dict[str, Declared]:
        """The outputs by name."""
        return {d.name.text: d for d in (self.program.header.outputs if self.program else ())}

    # Statements

    @property
    def statements(self) -> tuple[Statement, ...]:
        """The statements that could be read."""
        return self.program.statements if self.program else ()

    def statement_at(self, offset: int) -> Statement | None:
        """The statement that holds an offset."""
        return next((s for s in self.statements if s.start <= offset < s.end), None)

    def call_of(self, span: Span) -> tuple[Call, int] | None:
        """The call that has an argument (or the key of one) exactly there, and which one."""
        start, end = self.start(span), self.source.offset(*_end(span))
        statement = self.statement_at(start)
        for part in walk(statement.value) if statement else ():
            for index, argument in enumerate(part.arguments if isinstance(part, Call) else ()):
                keyed = isinstance(argument, Keyword)
                places = (argument.value, argument.key, argument) if keyed else (argument,)
                if any((p.start, p.end) == (start, end) for p in places):
                    assert isinstance(part, Call)
                    return part, index
        return None

    def call_named(self, offset: int) -> Call | None:
        """The call whose block's name stands at an offset."""
        statement = self.statement_at(offset)
        for part in walk(statement.value) if statement else ():
            if isinstance(part, Call) and part.word.start == offset:
                return part
        return None

    def reads(self, name: str) -> list[Word]:
        """Every use of a name in an expression, in order."""
        found = [
            part.word
            for statement in self.statements
            for part in walk(statement.value)
            if isinstance(part, NameRef) and part.word.text == name
        ]
        return sorted(found, key=lambda word: word.start)

    def defined_above(self, offset: int) -> list[str]:
        """The names that an expression at an offset may use."""
        above = [w.text for s in self.statements if s.end <= offset for w in s.targets]
        return list(dict.fromkeys([*self.params, *above]))

    @cached_property
    def unread(self) -> list[str]:
        """The names reported as never used."""
        items = (d for d in self.items if d.code == "F0205" and d.span is not None)
        return [self.text(d.span) for d in items if d.span]

    def undefined(self) -> list[str]:
        """The names reported as not defined, each once."""
        items = (d for d in self.items if d.code == "F0202" and d.span is not None)
        return list(dict.fromkeys(self.text(d.span) for d in items if d.span))

    def failure_of(self, item: Diagnostic) -> Failure | None:
        """The call behind a type problem."""
        for failure in self.out.failures if self.out else ():
            place = failure.places.get(failure.problem.operand or "", Place())
            if item.span is not None and place.span == item.span:
                return failure
        return None

    # Trials

    def improves(self, edits: Sequence[TextEdit], code: str) -> bool:
        """Whether a trial reading has fewer mistakes of that code and no more of all.

        Behind a syntax error others may come to light, so there only the first counts.
        """
        if self.trials <= 0:
            return False
        self.trials -= 1
        before = Counter(d.code for d in self.items)
        after = Counter(d.code for d in self.read(edited(self.source, edits)))
        fewer = after[code] < before[code]
        return fewer and (code == "F0101" or after.total() < before.total())

    def certain(self, title: str, *edits: TextEdit) -> Fix:
        """A fix that may be applied without asking."""
        return Fix(title, edits, CERTAIN)


def edited(source: Source, edits: Sequence[TextEdit]) -> str:
    """The text after the edits, which do not overlap."""
    text = source.text
    placed = [
        (source.offset(e.span.line, e.span.column), source.offset(*_end(e.span)), e.replacement)
        for e in edits
    ]
    for start, end, replacement in sorted(placed, key=lambda p: (p[0], p[1]), reverse=True):
        text = text[:start] + replacement + text[end:]
    return text


def walk(root: Expression) -> Iterator[Expression]:
    """Every part of an expression, without recursion; callers sort where order matters."""
    todo: list[Expression] = [root]
    while todo:
        part = todo.pop()
        yield part
        if isinstance(part, Call):
            todo += [a.value if isinstance(a, Keyword) else a for a in reversed(part.arguments)]


def blank_before(text: str, start: int) -> int:
    """Where the blanks in front of `start` begin, its line break included."""
    head = text[:start]
    stripped = head.rstrip(" \t")
    if stripped.endswith("\n"):
        return len(stripped) - 1
    return len(stripped)


def is_word(text: str) -> bool:
    """Whether a text is one name."""
    return re.fullmatch(r"[A-Za-z_]\w*", text) is not None


def _end(span: Span) -> tuple[int, int]:
    return span.end_line, span.end_column
