"""Building graphs: one checked way to add a node, used by frontends, expansion and rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from fusedsl.diagnostics import (
    NOWHERE,
    Diagnostic,
    FusedslError,
    Place,
    Span,
    closest,
    did_you_mean,
)
from fusedsl.ir.block import Attr, AttrValue, Block, BlockLibrary, OperandType, TypeProblem
from fusedsl.ir.graph import Graph, Node, Operand, Param, Result
from fusedsl.ir.indices import check_indices
from fusedsl.ir.types import DType, TensorType, is_fp32_range


@dataclass(frozen=True)
class Call:
    """A call whose operands and attributes are in their places."""

    operands: tuple[Operand, ...]
    attrs: tuple[tuple[str, AttrValue], ...]


#: Places of a call's parts, by operand or attribute name; "" is the call, "*" an operand too many.
Places = Mapping[str, Place]


def arrange_call(
    block: Block,
    positional: Sequence[Operand],
    named: Mapping[str, object],
    places: Places | None = None,
) -> tuple[Call | None, list[Diagnostic]]:
    """Put operands and attributes in order; report arity, unknown and bad attributes together.

    `named` holds operands given by keyword (a name or a number) and attributes alike.
    """
    problems: list[tuple[str, Diagnostic]] = []
    operands: list[Operand] = list(positional)
    if len(operands) > len(block.operands):
        problems.append(("*", _too_many(block, positional)))
        operands = operands[: len(block.operands)]
    operands += [None] * (len(block.operands) - len(operands))
    attrs: dict[str, AttrValue] = {}
    names = {op.name: i for i, op in enumerate(block.operands)}
    for key, value in named.items():
        spec = block.all_attrs.get(key)
        if key in names and operands[names[key]] is not None:
            problems.append((key, _given_twice(block, key)))
        elif key in names:
            operands[names[key]] = value if isinstance(value, str) else float(value)  # type: ignore[arg-type]
        elif spec is None:
            problems.append((key, _unknown_attr(block, key)))
        else:
            coerced = spec.coerce(value)
            if coerced is None:
                problems.append((key, _bad_attr(block, spec, value)))
            else:
                attrs[key] = coerced
    if len(positional) <= len(block.operands):  # else an attribute may stand among the operands
        problems += _missing(block, operands, named)
    problems += _literals(block, operands)
    if problems:
        return None, [item.at(_place(places, key)) for key, item in problems]
    defaults = {n: s.default for n, s in block.all_attrs.items() if not s.required}
    ordered = tuple((name, attrs.get(name, defaults.get(name))) for name in block.all_attrs)
    return Call(tuple(operands), cast(tuple[tuple[str, AttrValue], ...], ordered)), []


def _place(places: Places | None, key: str) -> Place:
    if not places:
        return NOWHERE
    return places.get(key) or places.get("", NOWHERE)


def _unknown_attr(block: Block, key: str) -> Diagnostic:
    known = [*block.all_attrs, *(op.name for op in block.operands if op.optional)]
    return Diagnostic(
        "F0302",
        f"'{block.name}' has no attribute '{key}'",
        expected=block.signature(),
        got=key,
        fix=did_you_mean(key, known, "attributes"),
        suggestion=closest(key, known),
    )


def _bad_attr(block: Block, spec: Attr, value: object) -> Diagnostic:
    if spec.is_out_of_range(value):
        return _out_of_range(f"the value of '{spec.name}'", value, spec.expectation())
    got = str(value)
    near = closest(got, [str(c) for c in spec.choices])
    return Diagnostic(
        "F0303",
        f"attribute '{spec.name}' of '{block.name}' does not accept this value",
        expected=spec.expectation(),
        got=got,
        fix=f"did you mean '{near}'?" if near else f"write {spec.name}= with {spec.expectation()}",
    )


def _out_of_range(what: str, value: object, expected: str) -> Diagnostic:
    got = str(value)[:40] if isinstance(value, str) else "a number that is too large"
    if isinstance(value, float) and abs(value) < 1:
        got = "a number that fp32 rounds to 0"
    if isinstance(value, float):
        expected += " within the range of fp32"
    elif isinstance(value, int) and abs(value) < 10**20:
        got = str(value)
    return Diagnostic(
        "F0105",
        f"{what} is out of range",
        expected=expected,
        got=got,
        fix=f"write {expected}",
    )


def _missing(
    block: Block, operands: list[Operand], named: Mapping[str, object]
) -> list[tuple[str, Diagnostic]]:
    out: list[tuple[str, Diagnostic]] = []
    absent = [
        op.name
        for op, v in zip(block.operands, operands, strict=True)
        if v is None and not op.optional
    ]
    known = {*block.all_attrs, *(op.name for op in block.operands)}
    if absent and known.issuperset(named):  # else one of them may be misspelt
        out.append(("", _arity(block, sum(v is not None for v in operands), absent)))
    for name, spec in block.all_attrs.items():
        if not spec.required or name in named:
            continue
        problem = Diagnostic(
            "F0304",
            f"'{block.name}' needs the attribute '{name}'",
            expected=f"{name}= with {spec.expectation()}",
            got="nothing",
            fix=f"add {name}=... to the call",
        )
        out.append(("", problem))
    return out


def _literals(block: Block, operands: list[Operand]) -> list[tuple[str, Diagnostic]]:
    out: list[tuple[str, Diagnostic]] = []
    for spec, value in zip(block.operands, operands, strict=True):
        if isinstance(value, float) and not is_fp32_range(value):
            out.append((spec.name, _out_of_range("the number", value, "a number")))
        elif isinstance(value, float) and not spec.scalar:
            problem = Diagnostic(
                "F0301",
                f"operand '{spec.name}' of '{block.name}' must be a tensor",
                expected="the name of a tensor",
                got=f"the number {value:g}",
                fix=_literal_fix(block, spec.name, value),
            )
            out.append((spec.name, problem))
    given = [v for v in operands if v is not None]
    if given and all(isinstance(v, float) for v in given) and not out:
        problem = Diagnostic(
            "F0301",
            f"'{block.name}' has no tensor operand",
            expected="at least one tensor",
            got="numbers only",
            fix="write the number it amounts to, next to a tensor",
        )
        out.append(("", problem))
    return out


def _literal_fix(block: Block, operand: str, value: float) -> str:
    keys = [a.name for a in block.attrs if a.kind in ("float", "int")]
    if not keys:
        return f"pass a tensor for '{operand}'"
    return f"pass a tensor for '{operand}', or name the attribute: {keys[0]}={value:g}"


def _arity(block: Block, got: int, absent: Sequence[str] = ()) -> Diagnostic:
    low, high = block.min_operands, len(block.operands)
    count = str(low) if low == high else f"{low} to {high}"
    return Diagnostic(
        "F0301",
        f"'{block.name}' takes {count} operand{'s' if high != 1 else ''}",
        expected=block.signature(),
        got=f"{got} operand{'s' if got != 1 else ''}",
        fix=f"add {', '.join(absent)}" if absent else f"call it as {block.signature()}",
    )


def _too_many(block: Block, given: Sequence[Operand]) -> Diagnostic:
    problem = _arity(block, len(given))
    excess = given[len(block.operands)]
    if isinstance(excess, float) and block.attrs:
        return replace(problem, fix=f"name the attribute: {block.attrs[0].name}={excess:g}")
    return problem


def _given_twice(block: Block, key: str) -> Diagnostic:
    return Diagnostic(
        "F0301",
        f"operand '{key}' of '{block.name}' is given twice",
        expected="each operand once",
        got=f"'{key}' by position and by name",
        fix=f"leave out {key}=",
    )


def infer_types(
    block: Block, call: Call, types: Mapping[str, TensorType]
) -> tuple[TensorType, ...]:
    """Result types of a call. Raises TypeProblem."""
    seen: dict[str, OperandType] = {
        spec.name: types[value] if isinstance(value, str) else value
        for spec, value in zip(block.operands, call.operands, strict=True)
    }
    attrs = dict(call.attrs)
    check_indices(block, seen)
    inferred = cast(TensorType | tuple[TensorType, ...], block.infer(seen, attrs))
    results = inferred if isinstance(inferred, tuple) else (inferred,)
    out = attrs.get("out_dtype", "auto")
    if out != "auto":
        results = tuple(t.with_dtype(DType(out)) for t in results)
    return results


@dataclass
class GraphBuilder:
    """Adds checked nodes. `origin` and `span` are stamped on every node that is added."""

    library: BlockLibrary
    name: str = "program"
    params: list[Param] = field(default_factory=list[Param])
    nodes: list[Node] = field(default_factory=list[Node])
    outputs: list[str] = field(default_factory=list[str])
    types: dict[str, TensorType] = field(default_factory=dict[str, TensorType])
    reserved: set[str] = field(default_factory=set[str])
    origin: str = ""
    span: Span | None = None
    _next: dict[str, int] = field(default_factory=dict[str, int])

    def add_param(self, name: str, type: TensorType, weight: bool = False) -> str:
        """Declare a parameter. Raises FusedslError (F0203) for a name in use."""
        self._claim(name)
        self.params.append(Param(name, type, weight, self.span))
        self.types[name] = type
        return name

    def call(
        self,
        block: str | Block,
        *operands: Operand,
        name: str | None = None,
        names: Sequence[str] = (),
        **named: object,
    ) -> str:
        """Add a node and give the name of its (first) result. Raises FusedslError."""
        return self.call_all(block, operands, named, names or ((name,) if name else ()))[0]

    def call_all(
        self,
        block: str | Block,
        operands: Sequence[Operand],
        named: Mapping[str, object],
        names: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Add a node and give the names of all its results. Raises FusedslError."""
        spec = self._lookup(block) if isinstance(block, str) else block
        plain = [float(op) if isinstance(op, int) else op for op in operands]
        for op in [*plain, *(named.get(o.name) for o in spec.operands)]:
            if isinstance(op, str) and op not in self.types:
                raise FusedslError(self.unknown_name(op))
        call, problems = arrange_call(spec, plain, named, {"": Place(self.span)})
        if call is None:
            raise FusedslError(problems)
        try:
            types = infer_types(spec, call, self.types)
        except TypeProblem as problem:
            raise FusedslError(self.located(spec, problem)) from None
        if names and len(names) != len(types):
            raise FusedslError(self.result_count(spec, len(names)))
        for result in names:
            self._claim(result)
        return self.append(spec, call, types, names)

    def append(
        self,
        block: Block,
        call: Call,
        types: Sequence[TensorType],
        names: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Add a node whose call, types and names were checked; gives its result names."""
        chosen = tuple(names)
        if not chosen:
            chosen = tuple(self.fresh(stem) for stem in block.results or (block.name,))
        results = tuple(Result(n, t) for n, t in zip(chosen, types, strict=True))
        self.nodes.append(Node(block, call.operands, call.attrs, results, self.origin, self.span))
        self.types.update({r.name: r.type for r in results})
        return chosen

    def fresh(self, stem: str) -> str:
        """An unused name that starts with `stem`."""
        index = self._next.get(stem, 1)
        while f"{stem}_{index}" in self.types or f"{stem}_{index}" in self.reserved:
            index += 1
        self._next[stem] = index
        return f"{stem}_{index}"

    def located(
        self, block: Block, problem: TypeProblem, places: Places | None = None
    ) -> Diagnostic:
        """A type problem with its place."""
        where = f"in '{block.name}'"
        if problem.operand:
            where += f", operand '{problem.operand}'"
        return Diagnostic(
            problem.code,
            problem.message,
            expected=problem.expected,
            got=problem.got,
            where=where,
            fix=problem.fix,
            span=self.span,
        ).at(_place(places, problem.operand or ""))

    def unknown_name(self, name: str) -> Diagnostic:
        """The diagnostic for a name that nothing defines."""
        return Diagnostic(
            "F0202",
            f"'{name}' is not defined here",
            expected="a parameter or a name assigned above",
            got=name,
            fix=did_you_mean(name, self.types, "names"),
            suggestion=closest(name, self.types),
            span=self.span,
        )

    def finish(self) -> Graph:
        """The graph so far; outputs must have been set."""
        return Graph(self.name, tuple(self.params), tuple(self.nodes), tuple(self.outputs))

    def unknown_block(self, name: str) -> Diagnostic:
        """The diagnostic for a block that the library does not have."""
        return Diagnostic(
            "F0201",
            f"there is no block '{name}'",
            expected="a block of the library",
            got=name,
            fix=self.library.suggestion(name),
            suggestion=closest(name, (b.name for b in self.library.public())),
            span=self.span,
        )

    def duplicate_name(self, name: str) -> Diagnostic:
        """The diagnostic for a name that is already defined."""
        return Diagnostic(
            "F0203",
            f"'{name}' is already defined",
            expected="each name assigned once",
            got=f"a second '{name}'",
            fix=f"use another name, for example '{self.fresh(name)}'",
            suggestion=self.fresh(name),
            span=self.span,
        )

    def _lookup(self, name: str) -> Block:
        block = self.library.get(name)
        if block is None:
            raise FusedslError(self.unknown_block(name))
        return block

    def _claim(self, name: str) -> None:
        if name in self.types:
            raise FusedslError(self.duplicate_name(name))

    def result_count(self, block: Block, got: int) -> Diagnostic:
        """The diagnostic for too many or too few names left of '='."""
        expected = max(1, len(block.results))
        return Diagnostic(
            "F0301",
            f"'{block.name}' gives {expected} result{'s' if expected > 1 else ''}",
            expected=f"{expected} name{'s' if expected > 1 else ''} left of '='",
            got=str(got),
            fix=f"assign {', '.join(block.results) or 'one name'}",
            span=self.span,
        )
