"""Reading on after a syntax error, so that one reading reports every mistake.

Only text that does not parse comes here. It is cut at `{`, `;` and `}`; the signature and each
statement are parsed on their own. Names in pieces that stay unreadable are `excused`: later
checks take them as defined and used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from lark import Token, UnexpectedCharacters, UnexpectedInput, UnexpectedToken
from lark.utils import TextSlice

from fusedsl.diagnostics import Diagnostic, Diagnostics, Place
from fusedsl.frontend import syntax_problems as problems
from fusedsl.frontend.syntax import Header, Program, Source, Statement, lark
from fusedsl.ir import NAME

_COMMENT = re.compile(r"#[^\n]*")


def parse_program(source: Source, bag: Diagnostics) -> tuple[Program | None, frozenset[str]]:
    """The tree, and the names excused. Reports F0101; None where the signature is unreadable."""
    try:
        return cast(Program, lark().parse(source.text, start="start")), frozenset()
    except UnexpectedInput:
        return _Recovery(source, bag).run()


class _Recovery:
    def __init__(self, source: Source, bag: Diagnostics):
        self.source = source
        self.bag = bag
        # Comments become blanks, so that offsets stay and a ';' in a comment ends nothing.
        self.text = _COMMENT.sub(lambda m: " " * len(m[0]), source.text)
        self.excused: set[str] = set()

    def run(self) -> tuple[Program | None, frozenset[str]]:
        end = len(self.text)
        opening = self.text.find("{")
        header = self._header(end if opening < 0 else opening)
        statements: list[Statement] = []
        if opening >= 0:
            closing = self.text.find("}", opening)
            statements += self._statements(opening + 1, end if closing < 0 else closing)
            if closing < 0:
                self._report(problems.missing_brace("}"), end)
            else:
                self._rest(closing + 1)
            if not statements and not self.bag:
                self._report(problems.no_statements(), opening)
        elif header is not None:
            self._report(problems.missing_brace("{"), end)
        program = None if header is None else Program(header, tuple(statements))
        return program, frozenset(self.excused)

    # The signature

    def _header(self, end: int) -> Header | None:
        try:
            tree = lark().parse(
                cast(str, TextSlice(self.text, 0, end)), start="header", on_error=self._repair
            )
            return cast(Header, tree)
        except UnexpectedInput as error:
            self._explain(error, 0, end, in_header=True)
            return None

    def _repair(self, error: UnexpectedInput) -> bool:
        """Read on over a mistyped dtype (reported later, by name) or qualifier."""
        if not isinstance(error, UnexpectedToken) or error.token.type != "NAME":
            return False
        parser: Any = error.interactive_parser
        values: list[Any] = parser.parser_state.value_stack
        last = values[-1] if values else None
        token = error.token
        if isinstance(last, Token) and last.type == "DTYPE" and last.end_pos == token.start_pos:
            values[-1] = Token("DTYPE", last + token, last.start_pos, end_pos=token.end_pos)
            return True
        if "DTYPE" not in error.accepts:
            return False
        follows = self.text[token.end_pos :].lstrip()[:1]
        if follows == "[":
            parser.feed_token(Token("DTYPE", str(token), token.start_pos, end_pos=token.end_pos))
            return True
        if NAME.fullmatch(follows) and "WEIGHT" in error.accepts:
            place = Place(self.source.span(token.start_pos or 0, token.end_pos or 0))
            self.bag.add(problems.unknown_qualifier(str(token)).at(place))
            return True
        return False

    # The statements

    def _statements(self, start: int, end: int) -> Iterator[Statement]:
        position = start
        while position < end and not self.bag.full:
            semicolon = self.text.find(";", position, end)
            stop = end if semicolon < 0 else semicolon + 1
            if not self.text[position:stop].strip():
                return
            statement, position = self._statement(position, stop)
            if statement is not None:
                yield statement

    def _statement(self, start: int, stop: int) -> tuple[Statement | None, int]:
        """One statement, and where the next one starts."""
        try:
            tree = lark().parse(cast(str, TextSlice(self.text, start, stop)), start="statement")
            return cast(Statement, tree), stop
        except UnexpectedInput as error:
            known = self._without_semicolon(error, start, stop)
            if known is not None:
                return known
            self._explain(error, start, stop, in_header=False)
            self.excused.update(NAME.findall(self.text[start:stop]))
            return None, stop

    def _without_semicolon(
        self, error: UnexpectedInput, start: int, stop: int
    ) -> tuple[Statement, int] | None:
        """The statement that lacks its ';' before a new line or the end."""
        if not isinstance(error, UnexpectedToken) or "SEMICOLON" not in error.accepts:
            return None
        at_end = error.token.type == "$END"
        offset = stop if at_end else error.token.start_pos or 0
        end = start + len(self.text[start:offset].rstrip())
        if not at_end and "\n" not in self.text[end:offset]:
            return None
        whole = TextSlice(self.text[:end] + ";", start, end + 1)
        tree = lark().parse(cast(str, whole), start="statement")
        self._report(problems.missing_semicolon(), end)
        return cast(Statement, tree), end

    def _rest(self, start: int) -> None:
        rest = self.text[start:]
        if rest.strip():
            offset = start + len(rest) - len(rest.lstrip())
            self._report(problems.text_after_kernel(rest.split()[0]), offset)

    # Reports

    def _report(self, problem: Diagnostic, offset: int) -> None:
        """At one character; the end of the text points behind its last word."""
        if offset >= len(self.text):
            offset = len(self.text.rstrip())
        at = self.source.span(offset, offset)
        self.bag.add(problem.at(Place(replace(at, end_column=at.column + 1))))

    def _explain(self, error: UnexpectedInput, start: int, end: int, in_header: bool) -> None:
        if isinstance(error, UnexpectedCharacters):
            offset = error.pos_in_stream or 0
            length, got = 1, self.text[offset]
        elif isinstance(error, UnexpectedToken) and error.token.type != "$END":
            offset, got = error.token.start_pos or 0, str(error.token)
            length = len(got)
        else:
            offset, length, got = end, 1, ""
        accepts: set[str] = set(cast(Any, error).interactive_parser.accepts())
        before = self.text[start:offset].split()
        problem = problems.unexpected(got, accepts, before, in_header)
        place = Place(self.source.span(offset, offset + length))
        if offset >= len(self.text):
            self._report(problem, offset)
        else:
            self.bag.add(problem.at(place))
