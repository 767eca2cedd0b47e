"""Repairs of types: the declaration, or the block, that does not fit.

A call that does not fit has several readings. Each that changes one thing (the block, the order of
two operands, one dimension or dtype of the signature) is tried on the whole program; if exactly
one makes it whole, it is certain.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusedsl.diagnostics import CERTAIN, GUESS, Diagnostic, Fix, TextEdit, single_near
from fusedsl.frontend.assemble import Failure
from fusedsl.frontend.facts import Facts
from fusedsl.frontend.syntax import Call as CallSyntax
from fusedsl.frontend.syntax import Declared, Keyword, NameRef
from fusedsl.ir import Call, Dim, TensorType, TypeProblem, infer_types

#: Declared dimensions of one program that are tried, at most.
_TRIED = 24


def dtypes(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """F0401: the dtype of one declaration, else a cast."""
    failure = facts.failure_of(item)
    if failure is None or facts.out is None:
        return
    types = _types(facts, failure)
    wanted = {t.dtype for t in types.values()}
    found: list[Fix] = []
    for name in types:
        declared = facts.params.get(name)
        if declared is None:
            continue
        for dtype in sorted(wanted - {types[name].dtype}):
            word = declared.type.dtype
            edit = facts.edit(word.start, word.end, dtype.value)
            if facts.improves([edit], "F0401"):
                found.append(Fix(f"declare '{name}' as {dtype}", (edit,), GUESS))
    yield from _only(found)
    expected = item.expected or ""
    if item.span is not None and expected in {t.value for t in wanted}:
        edit = facts.over(item.span, f"cast({facts.text(item.span)}, dtype={expected})")
        yield Fix(f"cast to {expected}", (edit,), GUESS)


def shapes(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """F0402: another block, other operands, or another dimension in the signature."""
    failure = facts.failure_of(item)
    if failure is None or facts.out is None or item.span is None:
        return
    found = [fix for fix in _other_calls(facts, item, failure) if _helps(facts, fix)]
    if not found:
        found = [fix for fix in _other_dims(facts, failure) if _helps(facts, fix)]
    yield from _only(found)


def _helps(facts: Facts, fix: Fix) -> bool:
    return facts.improves([e for e in fix.edits if isinstance(e, TextEdit)], "F0402")


def _only(found: list[Fix]) -> list[Fix]:
    """One reading is certain, several are guesses."""
    if len(found) != 1:
        return found
    return [Fix(found[0].title, found[0].edits, CERTAIN)]


def _types(facts: Facts, failure: Failure) -> dict[str, TensorType]:
    assert facts.out is not None
    names = [op for op in failure.call.operands if isinstance(op, str)]
    return {name: facts.out.builder.types[name] for name in names}


def _other_calls(facts: Facts, item: Diagnostic, failure: Failure) -> Iterator[Fix]:
    assert facts.out is not None and item.span is not None
    found = facts.call_of(item.span)
    if found is None or found[0].form != "call":
        return
    call, block = found[0], failure.block
    names = [op.name for op in block.operands]
    for other in facts.out.library.public():
        alike = other.kind is block.kind and [op.name for op in other.operands] == names
        if other != block and alike and _fits(facts, failure, failure.call, other.name):
            edit = facts.edit(call.word.start, call.word.end, other.name)
            yield Fix(f"use {other.name}", (edit,), GUESS)
    first, second, *rest = (*failure.call.operands, None, None)
    if isinstance(first, str) and isinstance(second, str) and len(call.arguments) > 1:
        swapped = Call((second, first, *rest)[: len(failure.call.operands)], failure.call.attrs)
        if _fits(facts, failure, swapped, block.name):
            yield from _swapped(facts, call)


def _swapped(facts: Facts, call: CallSyntax) -> Iterator[Fix]:
    one, two = call.arguments[:2]
    if isinstance(one, Keyword) or isinstance(two, Keyword):
        return
    text = facts.source.text
    edits = (
        facts.edit(one.start, one.end, text[two.start : two.end]),
        facts.edit(two.start, two.end, text[one.start : one.end]),
    )
    yield Fix("swap the operands", edits, GUESS)


def _fits(facts: Facts, failure: Failure, call: Call, block: str) -> bool:
    assert facts.out is not None
    try:
        infer_types(facts.out.library[block], call, facts.out.builder.types)
    except (TypeProblem, KeyError):
        return False
    return True


def _other_dims(facts: Facts, failure: Failure) -> Iterator[Fix]:
    """Each declared dimension that the failing call meets, replaced by another one it meets."""
    met: dict[Dim, None] = {}
    for type in _types(facts, failure).values():
        met.update(dict.fromkeys(type.shape))
    tried = 0
    for declared, at, dim, start, end in _declared_dims(facts):
        if dim not in met:
            continue
        for other in met:
            if other == dim or (dim.symbol is None) != (other.symbol is None):
                continue
            tried += 1
            if tried > _TRIED:
                return
            new = declared.type
            shape = [str(_dim(f, s)) for f, s in new.dims]
            shape[at] = str(other)
            title = f"declare '{declared.name.text}: {new.dtype.text}[{', '.join(shape)}]'"
            yield Fix(title, (facts.edit(start, end, str(other)),), GUESS)


def _declared_dims(facts: Facts) -> Iterator[tuple[Declared, int, Dim, int, int]]:
    for declared in facts.params.values():
        for at, (factor, symbol) in enumerate(declared.type.dims):
            words = [w for w in (factor, symbol) if w is not None]
            yield declared, at, _dim(factor, symbol), words[0].start, words[-1].end


def _dim(factor: object, symbol: object) -> Dim:
    return Dim.parse("*".join(w.text for w in (factor, symbol) if w is not None))  # type: ignore[attr-defined]


def unbound(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """F0404: the computed type of an output; of an attribute, the only near symbol."""
    assert item.span is not None
    if facts.out is None:
        return
    at = facts.start(item.span)
    for name, declared in facts.outputs.items():
        computed = facts.out.builder.types.get(name)
        if declared.type.start == at and computed is not None and name not in facts.out.doubtful:
            yield facts.certain(
                f"declare '{name}: {computed}'", facts.over(item.span, str(computed))
            )
            return
    symbol = item.got or ""
    near = single_near(symbol, facts.out.symbols)
    guess = near or item.suggestion
    text = facts.text(item.span)
    if guess and symbol in text:
        edit = facts.over(item.span, text.replace(symbol, guess, 1))
        yield Fix(f"write '{guess}'", (edit,), CERTAIN if near else GUESS)


def declared_otherwise(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """F0405: the computed type is declared."""
    assert item.span is not None
    if item.suggestion:
        edit = facts.over(item.span, item.suggestion)
        yield facts.certain(f"declare {item.suggestion}", edit)


def not_a_weight(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """F0407: the parameter may be meant as a weight."""
    found = facts.call_of(item.span) if item.span else None
    argument = found[0].arguments[found[1]] if found else None
    value = argument.value if isinstance(argument, Keyword) else argument
    declared = facts.params.get(value.word.text) if isinstance(value, NameRef) else None
    if declared is not None and not declared.weight:
        at = declared.type.dtype.start
        yield Fix(
            f"declare '{declared.name.text}: weight'", (facts.edit(at, at, "weight "),), GUESS
        )
