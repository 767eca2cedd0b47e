"""Repairs of calls: operands too many or too few, attributes misnamed or misplaced."""

from __future__ import annotations

from collections.abc import Iterator

from fusedsl.diagnostics import (
    BLANK,
    CERTAIN,
    GUESS,
    Diagnostic,
    Fix,
    closest,
    single_near,
)
from fusedsl.frontend.facts import Facts
from fusedsl.frontend.syntax import Call, Keyword, NameRef, Number
from fusedsl.ir import Attr, Block


def _block(facts: Facts, call: Call) -> Block | None:
    return facts.out.library.get(call.word.text) if facts.out and call.form == "call" else None


def operands(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """F0301: an attribute given by position, an operand too many, one that is missing."""
    assert item.span is not None
    found = facts.call_of(item.span)
    if found is None:
        call = facts.call_named(facts.start(item.span))
        block = _block(facts, call) if call else None
        if call is not None and block is not None:
            yield from _missing(facts, call, block)
        else:
            yield from _results(facts, item)
        return
    call, index = found
    block, argument = _block(facts, call), call.arguments[index]
    if block is None:
        return
    twice = _by_name(call, block, index) if "given twice" in item.message else None
    if twice is not None:
        same = _same(argument, call.arguments[twice].value)
        yield _without(facts, call, twice, twice, CERTAIN if same else GUESS)
        return
    keys = _attributes_for(call, block, argument)
    for key in keys:
        text = facts.source.text[argument.start : argument.end]
        edit = facts.edit(argument.start, argument.end, f"{key}={text}")
        certain = CERTAIN if len(keys) == 1 else GUESS
        yield Fix(f"name the attribute: {key}={text}", (edit,), certain)
    if not keys and index >= len(block.operands):
        yield _extra(facts, call, index)


def _by_name(call: Call, block: Block, index: int) -> int | None:
    """Which argument gives the operand at `index` by name."""
    name = block.operands[index].name if index < len(block.operands) else ""
    keys = [a.key.text if isinstance(a, Keyword) else "" for a in call.arguments]
    return keys.index(name) if name in keys else None


def _same(one: object, two: object) -> bool:
    """Whether two arguments are one name."""
    if isinstance(one, NameRef) and isinstance(two, NameRef):
        return one.word.text == two.word.text
    return False


def _attributes_for(call: Call, block: Block, argument: object) -> list[str]:
    """The attributes that a value given by position can have been meant for."""
    given = {a.key.text for a in call.arguments if isinstance(a, Keyword)}
    free = [a for name, a in block.all_attrs.items() if name not in given]
    if isinstance(argument, NameRef):
        return [a.name for a in free if a.choices and a.coerce(argument.word.text) is not None][:1]
    if not isinstance(argument, Number):
        return []
    whole = argument.text.lstrip("-").isdecimal()
    kinds = ("float", "int", "dim") if whole else ("float",)
    value = int(argument.text) if whole else float(argument.text)
    return [a.name for a in free if a.kind in kinds and a.coerce(value) is not None]


def _extra(facts: Facts, call: Call, index: int) -> Fix:
    """Take the operands from `index` on out; certain if each is a name that others read too."""
    last = index
    while last + 1 < len(call.arguments) and not isinstance(call.arguments[last + 1], Keyword):
        last += 1
    extra = call.arguments[index : last + 1]
    here = [a.word.text for a in extra if isinstance(a, NameRef)]
    elsewhere = all(len(facts.reads(name)) > here.count(name) for name in here)
    certain = elsewhere and len(here) == len(extra)
    return _without(facts, call, index, last, CERTAIN if certain else GUESS)


def _without(facts: Facts, call: Call, first: int, last: int, applicability: str) -> Fix:
    arguments = call.arguments
    if first:
        edit = facts.edit(arguments[first - 1].end, arguments[last].end, "")
    elif last + 1 < len(arguments):
        edit = facts.edit(arguments[0].start, arguments[last + 1].start, "")
    else:
        edit = facts.edit(arguments[0].start, arguments[last].end, "")
    what = facts.source.statement_text(arguments[first].start, arguments[last].end)
    return Fix(f"leave '{what}' out", (edit,), applicability)


def _missing(facts: Facts, call: Call, block: Block) -> Iterator[Fix]:
    """The operands that are absent: the only name that nobody reads, or a blank."""
    positional = [a for a in call.arguments if not isinstance(a, Keyword)]
    given = {a.key.text for a in call.arguments if isinstance(a, Keyword)}
    absent = [
        op.name
        for op in block.operands[len(positional) :]
        if not op.optional and op.name not in given
    ]
    if not absent:
        return
    at = positional[-1].end if positional else call.word.end + 1
    comma = ", " if positional else ""
    tail = ", " if given and not positional else ""
    known = facts.defined_above(at)
    for name in [n for n in facts.unread if n in known] if len(absent) == 1 else ():
        edit = facts.edit(at, at, f"{comma}{name}{tail}")
        if facts.improves([edit], "F0301"):
            yield facts.certain(f"pass '{name}' for '{absent[0]}'", edit)
            return
    blanks = ", ".join(f"<{name}>" for name in absent)
    edit = facts.edit(at, at, f"{comma}{blanks}{tail}")
    yield Fix(f"pass {', '.join(absent)}", (edit,), BLANK)


def _results(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """Names for the results that have none."""
    assert item.span is not None
    statement = facts.statement_at(facts.start(item.span))
    value = statement.value if statement else None
    if statement is None or facts.out is None or not isinstance(value, Call):
        return
    block = _block(facts, value)
    targets = statement.targets
    if block is None or not len(targets) < len(block.results):
        return
    fresh = [facts.out.builder.fresh(name) for name in block.results[len(targets) :]]
    at = targets[-1].end
    edit = facts.edit(at, at, "".join(f", {name}" for name in fresh))
    yield facts.certain(f"name {len(block.results)} results", edit)


def unknown_attribute(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """F0302: the attribute, or the optional operand, that was meant."""
    assert item.span is not None
    found = facts.call_of(item.span)
    block = _block(facts, found[0]) if found else None
    if found is None or block is None:
        return
    call, index = found
    key = facts.text(item.span)
    given = {a.key.text for a in call.arguments if isinstance(a, Keyword)}
    free = [n for n in [*block.all_attrs, *(op.name for op in block.operands)] if n not in given]
    meant = single_near(key, free)
    guess = meant or closest(key, free)
    if guess:
        certain = CERTAIN if meant else GUESS
        yield Fix(f"write {guess}=", (facts.over(item.span, guess),), certain)
    if not meant:
        yield _without(facts, call, index, index, GUESS)


def attribute_value(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """F0303: the choice that was meant; of an attribute given twice, the second goes."""
    assert item.span is not None
    found = facts.call_of(item.span)
    block = _block(facts, found[0]) if found else None
    if found is None or block is None:
        return
    call, index = found
    argument = call.arguments[index]
    if not isinstance(argument, Keyword):
        return
    key = argument.key.text
    before = [a for a in call.arguments[:index] if isinstance(a, Keyword) and a.key.text == key]
    if before:
        texts = {facts.source.statement_text(a.value.start, a.value.end) for a in before}
        same = facts.source.statement_text(argument.value.start, argument.value.end) in texts
        yield _without(facts, call, index, index, CERTAIN if same else GUESS)
        return
    spec = block.all_attrs.get(key)
    choices = _choices(spec) if spec else []
    value = facts.text(item.span)
    meant = single_near(value, choices)
    guess = meant or closest(value, choices)
    if guess:
        certain = CERTAIN if meant else GUESS
        yield Fix(f"write {key}={guess}", (facts.over(item.span, guess),), certain)


def _choices(spec: Attr) -> list[str]:
    return ["true", "false"] if spec.kind == "bool" else [str(c) for c in spec.choices]


def missing_attribute(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """F0304: the attribute with a blank."""
    assert item.span is not None
    call = facts.call_named(facts.start(item.span))
    block = _block(facts, call) if call else None
    if call is None or block is None:
        return
    given = {a.key.text for a in call.arguments if isinstance(a, Keyword)}
    at = call.arguments[-1].end if call.arguments else call.word.end + 1
    comma = ", " if call.arguments else ""
    for name, spec in block.all_attrs.items():
        if spec.required and name not in given and f"'{name}'" in item.message:
            blank = "|".join(_choices(spec)) or spec.kind
            edit = facts.edit(at, at, f"{comma}{name}=<{blank}>")
            yield Fix(f"add {name}=", (edit,), BLANK)
