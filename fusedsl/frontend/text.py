"""Text to Graph: parse, flatten nested expressions to SSA, check, all mistakes in one go."""

from __future__ import annotations

import re
from typing import Any

from fusedsl.blocks import library as standard_library
from fusedsl.diagnostics import Diagnostic, Diagnostics, FusedslError, Place
from fusedsl.frontend import problems, syntax_problems
from fusedsl.frontend.assemble import FAULTY, Assembler, Output, Target, Value
from fusedsl.frontend.facts import Facts
from fusedsl.frontend.fixes import with_fixes
from fusedsl.frontend.recover import parse_program
from fusedsl.frontend.syntax import (
    Call,
    Declared,
    Expression,
    Keyword,
    NameRef,
    Number,
    Program,
    Source,
    Statement,
    TypeSyntax,
    Word,
)
from fusedsl.ir import NAME, Block, BlockLibrary, Dim, Graph, TensorType

_TINY = 5e-324  # stands for a literal that is not 0 and rounds to it: out of range, as it is


def parse(text: str, *, library: BlockLibrary | None = None, file: str | None = None) -> Graph:
    """Read one kernel. `file` is named in messages.

    Raises FusedslError with every independent mistake: F0101, F0104, F0105, F0201 to F0206,
    F0301 to F0304, F0403 to F0405, F0407 and the codes of the blocks' own checks.
    """
    if not isinstance(text, str):
        raise FusedslError(_not_text(text))
    reading = _Reading(text, library or standard_library(), file)
    try:
        return reading.run()
    except FusedslError as error:
        facts = Facts(
            reading.source,
            reading.program,
            reading.out,
            error.diagnostics,
            lambda other: _mistakes(other, reading.library),
        )
        raise with_fixes(error, facts) from None


def _mistakes(text: str, library: BlockLibrary) -> tuple[Diagnostic, ...]:
    """The diagnostics of a text, without fixes."""
    try:
        _Reading(text, library, None).run()
    except FusedslError as error:
        return error.diagnostics
    return ()


class _Reading:
    """One reading of a text, kept as far as it came."""

    def __init__(self, text: str, library: BlockLibrary, file: str | None):
        self.library = library
        self.bag = Diagnostics(file=file)
        self.source = Source(text.removeprefix("\ufeff") + "\n")
        self.program: Program | None = None
        self.out: Assembler | None = None

    def run(self) -> Graph:
        """The graph. Raises FusedslError."""
        _check_names(self.source, self.bag)
        self.program, excused = parse_program(self.source, self.bag)
        if self.program is None:
            self.bag.raise_if_any(self.source.text)
        assert self.program is not None
        lowering = _Lowering(self.source, self.bag, self.program, excused, self.library)
        self.out = lowering.out
        return lowering.run()


def _not_text(value: object) -> Diagnostic:
    got = type(value).__name__
    fix = "decode it first: text.decode('utf-8')" if isinstance(value, bytes) else "pass a str"
    return Diagnostic("F0101", "a program is a text", expected="str", got=got, fix=fix)


def _check_names(source: Source, bag: Diagnostics) -> None:
    for match in re.finditer(rf"\b[A-Za-z_][A-Za-z0-9_]{{{problems.MAX_NAME},}}", source.text):
        line = source.text.rfind("\n", 0, match.start()) + 1
        if "#" not in source.text[line : match.start()]:
            bag.add(problems.bad_name(match[0]).at(Place(source.span(*match.span()))))


class _Lowering:
    """Statements in order; within one, operands before the call that reads them."""

    def __init__(
        self,
        source: Source,
        bag: Diagnostics,
        program: Program,
        excused: frozenset[str],
        library: BlockLibrary,
    ):
        self.source = source
        self.bag = bag
        self.program = program
        self.library = library
        self.out = Assembler(
            library,
            bag,
            program.header.name.text,
            assigned=frozenset(w.text for s in program.statements for w in s.targets),
            excused=excused,
            reserved=frozenset(NAME.findall(source.text)),
        )

    def run(self) -> Graph:
        header = self.program.header
        for declared in header.params:
            self._param(declared)
        self.out.check_symbols()
        outputs = [self._output(declared) for declared in header.outputs]
        for statement in self.program.statements:
            if self.bag.full:
                break
            self._statement(statement)
        return self.out.finish(outputs, self.source.text)

    # The signature

    def _param(self, declared: Declared) -> None:
        type = self._type(declared.type)
        self.out.param(declared.name.text, type, declared.weight, self._place(declared.name))
        if type is None:
            self.out.bind(symbol.text for _, symbol in declared.type.dims if symbol)

    def _output(self, declared: Declared) -> Output:
        type_place = Place(self.source.span(declared.type.start, declared.type.end))
        type = self._type(declared.type)
        return Output(declared.name.text, self._place(declared.name), type, type_place)

    def _type(self, written: TypeSyntax) -> TensorType | None:
        dims = [self._dim(factor, symbol) for factor, symbol in written.dims]
        dtype = self.out.dtype(written.dtype.text, self._place(written.dtype))
        place = Place(self.source.span(written.start, written.end))
        return self.out.tensor_type(dtype, dims, place)

    def _dim(self, factor: Word | None, symbol: Word | None) -> Dim | None:
        words = [word for word in (factor, symbol) if word is not None]
        dim = Dim.parse("*".join(word.text for word in words))
        return self.out.dim(dim, Place(self.source.span(words[0].start, words[-1].end)))

    # Statements

    def _statement(self, statement: Statement) -> None:
        builder = self.out.builder
        builder.origin = self.source.statement_text(statement.start, statement.end)
        builder.span = self.source.span(statement.start, statement.end)
        targets = [Target(word.text, self._place(word)) for word in statement.targets]
        self.out.assigning = frozenset(t.name for t in targets)
        value = statement.value
        if isinstance(value, Call):
            self._expression(value, targets)
            return
        if isinstance(value, NameRef):
            read = self.out.read(value.word.text, self._place(value))
            problem = syntax_problems.only_renames(targets[0].name, value.word.text)
        else:
            read = 0.0
            problem = syntax_problems.only_a_number(targets[0].name, value.text)
        if read is not FAULTY:
            self.bag.add(problem.at(self._place(value)))
        self.out.apply(None, (), {}, {}, targets)

    def _expression(self, root: Call, targets: list[Target]) -> None:
        """Post-order with a stack of its own: depth costs no recursion."""
        values: list[Value] = []
        todo: list[tuple[Any, Block | None, bool]] = [(root, self._block(root), False)]
        while todo:
            part, block, ready = todo.pop()
            if isinstance(part, NameRef):
                values.append(self.out.read(part.word.text, self._place(part)))
            elif isinstance(part, Number):
                values.append(float(_number(part.text)))
            elif ready:
                self._reduce(part, block, values, targets if part is root else [])
            else:
                todo.append((part, block, True))
                for operand in reversed(_operands(part, block)):
                    inner = self._block(operand) if isinstance(operand, Call) else None
                    todo.append((operand, inner, False))

    def _reduce(
        self, call: Call, block: Block | None, values: list[Value], targets: list[Target]
    ) -> None:
        """Take the call's operands off `values` and put its result there."""
        count = len(_operands(call, block))
        operands = values[len(values) - count :]
        del values[len(values) - count :]
        if block is None:
            self.out.used.update(NAME.findall(self.source.text[call.start : call.end]))
            names = self.out.apply(None, (), {}, {}, targets)
        else:
            positional, named, places = self._arguments(call, block, operands)
            names = self.out.apply(block, positional, named, places, targets)
        values.append(names[0] if names else FAULTY)

    def _arguments(
        self, call: Call, block: Block, operands: list[Value]
    ) -> tuple[list[Value], dict[str, Any], dict[str, Place]]:
        given = iter(operands)
        positional: list[Value] = []
        named: dict[str, Any] = {}
        places = {"": self._place(call.word)}
        specs = block.operands
        for argument in call.arguments:
            if not isinstance(argument, Keyword):
                index = len(positional)
                key = specs[index].name if index < len(specs) else "*"
                places.setdefault(key, self._place(argument))
                positional.append(next(given))
                continue
            key = argument.key.text
            is_operand = _is_operand(block, argument)
            value = next(given) if is_operand else self._attr(block, argument)
            if key in named:
                self.bag.add(problems.given_twice(key).at(self._place(argument.key)))
                continue
            named[key] = value
            known = is_operand or key in block.all_attrs
            places.setdefault(key, self._place(argument.value if known else argument.key))
        return positional, named, places

    def _attr(self, block: Block, argument: Keyword) -> object:
        """The value of an attribute as the block's spec will read it."""
        value = argument.value
        spec = block.all_attrs.get(argument.key.text)
        if spec is None:  # an operand's name may be misspelt: what it reads is used
            self.out.used.update(NAME.findall(self.source.text[value.start : value.end]))
        if isinstance(value, NameRef):
            return value.word.text
        if isinstance(value, Number):
            return _number(value.text)
        text = self.source.statement_text(value.start, value.end)
        if spec is not None and spec.kind == "dim" and re.fullmatch(r"[0-9]+ ?\* ?\w+", text):
            return text
        return _Text(problems.shown(text))

    def _block(self, call: Call) -> Block | None:
        """The block a call or an operator stands for; reports F0201."""
        place = self._place(call.word)
        if call.form == "call":
            return self.out.block(call.word.text, place)
        spelt = self.library.infix if call.form == "infix" else self.library.prefix
        if call.word.text not in spelt:
            self.bag.add(problems.no_operator(call.word.text, spelt).at(place))
        return spelt.get(call.word.text)

    def _place(self, part: Any) -> Place:
        return self.source.place(part)


class _Text:
    """An attribute value that is neither a name nor a number; no attribute accepts it."""

    def __init__(self, text: str):
        self.text = text

    def __str__(self) -> str:
        return self.text


def _operands(call: Call, block: Block | None) -> list[Expression]:
    """The arguments that are values; of an unknown block, all that can be nothing else."""
    out: list[Expression] = []
    for argument in call.arguments:
        if not isinstance(argument, Keyword):
            out.append(argument)
        elif block is not None and _is_operand(block, argument):
            out.append(argument.value)
    return out


def _is_operand(block: Block, argument: Keyword) -> bool:
    return any(op.name == argument.key.text for op in block.operands)


def _number(text: str) -> int | float:
    """The value of a literal; infinite, or `_TINY`, where a double cannot hold it."""
    digits = text.lower().partition("e")[0]
    if text.lstrip("-").isdecimal() and len(text) <= 40:
        return int(text)
    value = float(text)
    return _TINY if value == 0 and any(c in "123456789" for c in digits) else value
