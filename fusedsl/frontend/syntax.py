"""From text to a syntax tree: the Lark parser, built once, and its tree.

The tree is made while the parser reduces, bottom up, so depth costs no Python recursion. Every
part knows where it is as a pair of offsets; `Source.span` turns offsets into lines and columns.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from lark import Lark, Token, Transformer, v_args

from fusedsl.diagnostics import Place, Span

_COMMENT = re.compile(r"#[^\n]*")


class Source:
    """A program's text, with lines and columns on demand."""

    def __init__(self, text: str):
        self.text = text
        self._starts: list[int] | None = None

    def span(self, start: int, end: int) -> Span:
        """The span of text[start:end]."""
        return Span(*self._position(start), *self._position(end))

    def offset(self, line: int, column: int) -> int:
        """The offset of a line and a column, as `span` gives them."""
        return self._lines()[line - 1] + column - 1

    def place(self, part: Located) -> Place:
        """Where a part of the tree is."""
        return Place(self.span(part.start, part.end))

    def statement_text(self, start: int, end: int) -> str:
        """text[start:end] on one line, without comments."""
        return " ".join(_COMMENT.sub(" ", self.text[start:end]).split())

    def _position(self, offset: int) -> tuple[int, int]:
        starts = self._lines()
        line = bisect_right(starts, offset)
        return line, offset - starts[line - 1] + 1

    def _lines(self) -> list[int]:
        if self._starts is None:
            self._starts = [0, *(m.end() for m in re.finditer("\n", self.text))]
        return self._starts


class Word(NamedTuple):
    """A name, a number or an operator where it stands."""

    text: str
    start: int
    end: int


class NameRef(NamedTuple):
    """A use of a name."""

    word: Word
    start: int
    end: int


class Number(NamedTuple):
    """A literal as written, with its sign."""

    text: str
    start: int
    end: int


class Keyword(NamedTuple):
    """`key=value` in a call."""

    key: Word
    value: Expression
    start: int
    end: int


class Call(NamedTuple):
    """`name(arguments)`, an operator between two operands, or a minus before one.

    `infix` and `prefix` say how it is spelt; `word` is then the operator.
    """

    word: Word
    arguments: tuple[Any, ...]
    form: str  # "call", "infix" or "prefix"
    start: int
    end: int


Expression = NameRef | Number | Call
Located = Word | NameRef | Number | Keyword | Call


@dataclass(frozen=True)
class TypeSyntax:
    """`bf16[M, 4096]`; a dimension is (factor, symbol), either may be missing."""

    dtype: Word
    dims: tuple[tuple[Word | None, Word | None], ...]
    start: int
    end: int


@dataclass(frozen=True)
class Declared:
    """A parameter or an output in the signature."""

    name: Word
    type: TypeSyntax
    weight: bool = False


@dataclass(frozen=True)
class Header:
    """`kernel name(parameters) -> (outputs)`."""

    name: Word
    params: tuple[Declared, ...]
    outputs: tuple[Declared, ...]


@dataclass(frozen=True)
class Statement:
    """`a, b = expression;`"""

    targets: tuple[Word, ...]
    value: Expression
    start: int
    end: int


@dataclass(frozen=True)
class Program:
    """A whole file."""

    header: Header
    statements: tuple[Statement, ...]


def _word(token: Token) -> Word:
    return Word(str(token), token.start_pos or 0, token.end_pos or 0)


@v_args(inline=True)
class _Tree(Transformer[Token, Any]):
    """Builds the tree; one method per rule of the grammar."""

    def start(self, header: Header, *statements: Statement) -> Program:
        return Program(header, statements)

    def header(self, name: Token, params: tuple[Declared, ...], outputs: tuple[Declared, ...]):
        return Header(_word(name), params, outputs)

    def params(self, *items: Declared) -> tuple[Declared, ...]:
        return items

    outputs = arguments = params

    def param(self, name: Token, *rest: Any) -> Declared:
        return Declared(_word(name), rest[-1], weight=len(rest) > 1)

    output = param

    def type(self, dtype: Token, *rest: Any) -> TypeSyntax:
        return TypeSyntax(_word(dtype), rest[:-1], dtype.start_pos or 0, rest[-1].end_pos)

    def dim(self, *tokens: Token) -> tuple[Word | None, Word | None]:
        words = {token.type: _word(token) for token in tokens}
        return words.get("INT"), words.get("NAME")

    def statement(self, targets: tuple[Word, ...], value: Expression, semicolon: Token):
        return Statement(targets, value, targets[0].start, semicolon.end_pos or 0)

    def targets(self, *names: Token) -> tuple[Word, ...]:
        return tuple(map(_word, names))

    def name(self, token: Token) -> NameRef:
        word = _word(token)
        return NameRef(word, word.start, word.end)

    def number(self, token: Token) -> Number:
        return Number(*_word(token))

    def negated(self, minus: Token, value: Expression) -> Expression:
        start = minus.start_pos or 0
        if isinstance(value, Number):
            text = value.text[1:] if value.text.startswith("-") else "-" + value.text
            return Number(text, start, value.end)
        return Call(_word(minus), (value,), "prefix", start, value.end)

    def infix(self, left: Expression, operator: Token, right: Expression) -> Call:
        return Call(_word(operator), (left, right), "infix", left.start, right.end)

    def call(self, name: Token, *rest: Any) -> Call:
        *arguments, closing = rest
        given = arguments[0] if arguments else ()
        return Call(_word(name), given, "call", name.start_pos or 0, closing.end_pos)

    def keyword(self, name: Token, value: Expression) -> Keyword:
        key = _word(name)
        return Keyword(key, value, key.start, value.end)


def grammar() -> str:
    """The text of the grammar, for lark and for grammar-constrained decoding."""
    return resources.files("fusedsl.frontend").joinpath("grammar.lark").read_text(encoding="utf-8")


@cache
def lark() -> Lark:
    """The parser, built on first use."""
    return Lark(
        grammar(),
        parser="lalr",
        lexer="contextual",
        start=["start", "header", "statement"],
        maybe_placeholders=False,
        transformer=_Tree(),
    )
