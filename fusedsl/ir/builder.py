"""Building graphs: one checked way to add a node, used by frontends, expansion and rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fusedsl.diagnostics import Diagnostic, FusedslError, Span, did_you_mean
from fusedsl.ir.block import AttrValue, Block, BlockLibrary, OperandType, TypeProblem
from fusedsl.ir.graph import Graph, Node, Operand, Param, Result
from fusedsl.ir.types import DType, TensorType


@dataclass(frozen=True)
class Call:
    """A call whose operands and attributes are in their places."""

    operands: tuple[Operand, ...]
    attrs: tuple[tuple[str, AttrValue], ...]


def arrange_call(
    block: Block,
    positional: Sequence[Operand],
    named: Mapping[str, object],
    span: Span | None = None,
) -> tuple[Call | None, list[Diagnostic]]:
    """Put operands and attributes in order; report arity, unknown and bad attributes together.

    `named` holds operands given by keyword (a name or a number) and attributes alike.
    """
    problems: list[Diagnostic] = []
    operands: list[Operand] = list(positional)
    if len(operands) > len(block.operands):
        problems.append(_arity(block, len(positional), span))
        operands = operands[: len(block.operands)]
    operands += [None] * (len(block.operands) - len(operands))
    attrs: dict[str, AttrValue] = {}
    names = {op.name: i for i, op in enumerate(block.operands)}
    for key, value in named.items():
        if key in names:
            if operands[names[key]] is not None:
                problems.append(_given_twice(block, key, span))
            else:
                operands[names[key]] = value if isinstance(value, str) else float(value)  # type: ignore[arg-type]
            continue
        spec = block.all_attrs.get(key)
        if spec is None:
            known = [*block.all_attrs, *(op.name for op in block.operands if op.optional)]
            problems.append(
                Diagnostic(
                    "F0302",
                    f"'{block.name}' has no attribute '{key}'",
                    expected=block.signature(),
                    got=key,
                    fix=did_you_mean(key, known, "attributes"),
                    span=span,
                )
            )
            continue
        coerced = spec.coerce(value)
        if coerced is None:
            problems.append(
                Diagnostic(
                    "F0303",
                    f"attribute '{key}' of '{block.name}' does not accept this value",
                    expected=spec.expectation(),
                    got=str(value),
                    fix=f"write {key}= with {spec.expectation()}",
                    span=span,
                )
            )
        else:
            attrs[key] = coerced
    problems += _missing(block, operands, attrs, named, span, bool(problems))
    problems += _literals(block, operands, span)
    if problems:
        return None, problems
    ordered = tuple(
        (name, attrs.get(name, spec.default))  # type: ignore[misc]
        for name, spec in block.all_attrs.items()
    )
    return Call(tuple(operands), ordered), []


def _missing(
    block: Block,
    operands: list[Operand],
    attrs: Mapping[str, AttrValue],
    named: Mapping[str, object],
    span: Span | None,
    had_problems: bool,
) -> list[Diagnostic]:
    out: list[Diagnostic] = []
    absent = [
        op.name
        for op, v in zip(block.operands, operands, strict=True)
        if v is None and not op.optional
    ]
    if absent and not had_problems:
        out.append(_arity(block, sum(v is not None for v in operands), span, absent))
    for name, spec in block.all_attrs.items():
        if spec.required and name not in attrs and name not in named:
            out.append(
                Diagnostic(
                    "F0304",
                    f"'{block.name}' needs the attribute '{name}'",
                    expected=f"{name}= with {spec.expectation()}",
                    got="nothing",
                    fix=f"add {name}=... to the call",
                    span=span,
                )
            )
    return out


def _literals(block: Block, operands: list[Operand], span: Span | None) -> list[Diagnostic]:
    out: list[Diagnostic] = []
    for spec, value in zip(block.operands, operands, strict=True):
        if isinstance(value, float) and not spec.scalar:
            out.append(
                Diagnostic(
                    "F0301",
                    f"operand '{spec.name}' of '{block.name}' must be a tensor",
                    expected="the name of a tensor",
                    got=f"the number {value:g}",
                    fix=f"pass a tensor for '{spec.name}', or name the attribute: key={value:g}",
                    span=span,
                )
            )
    if operands and all(isinstance(v, float) or v is None for v in operands) and not out:
        out.append(
            Diagnostic(
                "F0301",
                f"'{block.name}' has no tensor operand",
                expected="at least one tensor",
                got="numbers only",
                fix="write the number itself",
                span=span,
            )
        )
    return out


def _arity(block: Block, got: int, span: Span | None, absent: Sequence[str] = ()) -> Diagnostic:
    low, high = block.min_operands, len(block.operands)
    count = str(low) if low == high else f"{low} to {high}"
    return Diagnostic(
        "F0301",
        f"'{block.name}' takes {count} operand{'s' if high != 1 else ''}",
        expected=block.signature(),
        got=f"{got} operand{'s' if got != 1 else ''}",
        fix=f"add {', '.join(absent)}" if absent else f"call it as {block.signature()}",
        span=span,
    )


def _given_twice(block: Block, key: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        "F0301",
        f"operand '{key}' of '{block.name}' is given twice",
        expected="each operand once",
        got=f"'{key}' by position and by name",
        fix=f"leave out {key}=",
        span=span,
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
    inferred = block.infer(seen, attrs)
    results: tuple[TensorType, ...] = inferred if isinstance(inferred, tuple) else (inferred,)
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
        call, problems = arrange_call(spec, plain, named, self.span)
        if call is None:
            raise FusedslError(problems)
        try:
            types = infer_types(spec, call, self.types)
        except TypeProblem as problem:
            raise FusedslError(self.located(spec, problem)) from None
        if names and len(names) != len(types):
            raise FusedslError(self._result_count(spec, len(types), len(names)))
        chosen = tuple(names) or tuple(
            self.fresh(suffix or spec.name) for suffix in (spec.results or (spec.name,))
        )
        for result in chosen:
            self._claim(result)
        results = tuple(Result(n, t) for n, t in zip(chosen, types, strict=True))
        self.nodes.append(Node(spec, call.operands, call.attrs, results, self.origin, self.span))
        self.types.update({r.name: r.type for r in results})
        return chosen

    def fresh(self, stem: str) -> str:
        """An unused name that starts with `stem`."""
        index = 1
        while f"{stem}_{index}" in self.types or f"{stem}_{index}" in self.reserved:
            index += 1
        return f"{stem}_{index}"

    def located(self, block: Block, problem: TypeProblem) -> Diagnostic:
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
        )

    def unknown_name(self, name: str) -> Diagnostic:
        """The diagnostic for a name that nothing defines."""
        return Diagnostic(
            "F0202",
            f"'{name}' is not defined here",
            expected="a parameter or a name assigned above",
            got=name,
            fix=did_you_mean(name, self.types, "names"),
            span=self.span,
        )

    def finish(self) -> Graph:
        """The graph so far; outputs must have been set."""
        return Graph(self.name, tuple(self.params), tuple(self.nodes), tuple(self.outputs))

    def _lookup(self, name: str) -> Block:
        block = self.library.get(name)
        if block is None:
            raise FusedslError(
                Diagnostic(
                    "F0201",
                    f"there is no block '{name}'",
                    expected="a block of the library",
                    got=name,
                    fix=self.library.suggestion(name),
                    span=self.span,
                )
            )
        return block

    def _claim(self, name: str) -> None:
        if name in self.types:
            raise FusedslError(
                Diagnostic(
                    "F0203",
                    f"'{name}' is already defined",
                    expected="each name assigned once",
                    got=f"a second '{name}'",
                    fix=f"use another name, for example '{self.fresh(name)}'",
                    span=self.span,
                )
            )

    def _result_count(self, block: Block, expected: int, got: int) -> Diagnostic:
        return Diagnostic(
            "F0301",
            f"'{block.name}' gives {expected} result{'s' if expected > 1 else ''}",
            expected=f"{expected} name{'s' if expected > 1 else ''} left of '='",
            got=str(got),
            fix=f"assign {', '.join(block.results) or 'one name'}",
            span=self.span,
        )
