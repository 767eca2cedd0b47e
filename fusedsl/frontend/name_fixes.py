"""Repairs of names: swapped, renamed, moved, taken out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fusedsl.diagnostics import (
    CERTAIN,
    GUESS,
    Diagnostic,
    Fix,
    TextEdit,
    closest,
    single_near,
)
from fusedsl.frontend.facts import Facts, blank_before
from fusedsl.frontend.problems import OTHER_DTYPES
from fusedsl.frontend.syntax import Declared, Statement, Word
from fusedsl.ir import DType

#: What other systems call the blocks.
_OTHER_BLOCKS = {
    "dense": "linear",
    "fc": "linear",
    "mm": "matmul",
    "dot": "matmul",
    "swish": "silu",
    "logistic": "sigmoid",
    "relu2": "squared_relu",
    "relusquared": "squared_relu",
    "glu": "swiglu",
}


def unknown_block(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """F0201: the block that was meant."""
    assert item.span is not None
    word = facts.text(item.span)
    if facts.out is None or not re.fullmatch(r"\w+", word):
        return
    known = [block.name for block in facts.out.library.public()]
    same = _OTHER_BLOCKS.get(word.lower().replace("_", ""))
    yield from _swap(facts, item, same or single_near(word, known), closest(word, known))


def unknown_dtype(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """F0206: the dtype that was meant."""
    assert item.span is not None
    word = facts.text(item.span)
    known = [d.value for d in DType]
    yield from _swap(
        facts, item, OTHER_DTYPES.get(word.lower()) or single_near(word, known), item.suggestion
    )


def unknown_name(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """F0202: the only near name; better, the near one that nobody reads."""
    assert item.span is not None
    word = facts.text(item.span)
    known = facts.defined_above(facts.start(item.span))
    unread = [name for name in facts.unread if name in known]
    near = single_near(word, known)
    if near is not None and _only_digits_differ(near, word) and near not in unread:
        near = None
    meant = single_near(word, unread) or near or closest(word, unread)
    if meant is None and len(unread) == 1 and len(facts.undefined()) == 1:
        edit = facts.over(item.span, unread[0])
        meant = unread[0] if facts.improves([edit], "F0202") else None
    elif meant is not None and meant != near:
        meant = meant if facts.improves([facts.over(item.span, meant)], "F0202") else None
    yield from _swap(facts, item, meant, closest(word, known))


def _swap(facts: Facts, item: Diagnostic, certain: str | None, guess: str | None) -> Iterator[Fix]:
    assert item.span is not None
    if certain:
        yield Fix(f"write '{certain}'", (facts.over(item.span, certain),), CERTAIN)
    elif guess:
        yield Fix(f"write '{guess}'", (facts.over(item.span, guess),), GUESS)


def _only_digits_differ(a: str, b: str) -> bool:
    return re.sub(r"\d", "0", a) == re.sub(r"\d", "0", b)


def defined_twice(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """F0203: the name that is read and that nothing defines, else a free one."""
    assert item.span is not None
    if facts.out is None:
        return
    word, at = facts.text(item.span), facts.start(item.span)
    missing = facts.undefined()
    if len(missing) == 1 and _read_after(facts, missing[0], at):
        yield facts.certain(f"call it '{missing[0]}'", facts.over(item.span, missing[0]))
        return
    free = facts.out.builder.fresh(word)
    statement = facts.statement_at(at)
    earlier = [w for w in _targets(facts, word) if w.start < at]
    if statement is None or "dimension" in item.message:
        yield Fix(f"call it '{free}'", (facts.over(item.span, free),), GUESS)
    elif earlier:  # the later value keeps the name: it is the one that uses below mean
        words = [w for w in facts.reads(word) if earlier[-1].start < w.start < statement.end]
        yield facts.certain(
            f"call the first '{free}'", *_renamed(facts, [earlier[-1], *words], free)
        )
    elif word in facts.params and word not in facts.outputs:
        words = [w for w in facts.reads(word) if w.start > statement.end]
        here = [w for w in statement.targets if w.start == at]
        yield facts.certain(f"call the result '{free}'", *_renamed(facts, [*here, *words], free))
    else:
        yield Fix(f"call it '{free}'", (facts.over(item.span, free),), GUESS)


def _renamed(facts: Facts, words: list[Word], name: str) -> list[TextEdit]:
    return [facts.edit(word.start, word.end, name) for word in words]


def _read_after(facts: Facts, name: str, at: int) -> bool:
    reads = facts.reads(name)
    return bool(reads) and reads[0].start > at


def _targets(facts: Facts, name: str) -> list[Word]:
    return [w for s in facts.statements for w in s.targets if w.text == name]


def unassigned(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """F0204: the value that nobody reads was meant to be the output."""
    assert item.span is not None
    name = facts.text(item.span)
    if facts.out is None or name in facts.params:
        return
    unread = [w for n in facts.unread for w in _targets(facts, n)]
    types = facts.out.builder.types
    declared = facts.outputs[name].type
    written = facts.source.statement_text(declared.start, declared.end)
    fitting = [w for w in unread if str(types.get(w.text)) == written]
    for choice in (fitting, unread):
        if len(choice) == 1:
            word = choice[0]
            yield facts.certain(
                f"call '{word.text}' '{name}'", facts.edit(word.start, word.end, name)
            )
            return
    for word in unread:
        yield Fix(f"call '{word.text}' '{name}'", (facts.edit(word.start, word.end, name),), GUESS)


def unused(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """F0205: the statement or the parameter goes; a guess beside a mistake that may be the reason
    why nobody reads it."""
    assert item.span is not None
    reasons = {"F0101", "F0201", "F0202", "F0301", "F0302"}
    certain = GUESS if reasons & {d.code for d in facts.items} else CERTAIN
    name, at = facts.text(item.span), facts.start(item.span)
    statement = facts.statement_at(at)
    if statement is None:
        edit = _without_param(facts, name)
        if edit is not None:
            yield Fix(f"take the parameter '{name}' out", (edit,), certain)
        return
    if len(facts.statements) > 1:
        edit = _without(facts, statement)
        yield Fix(f"take the statement of '{name}' out", (edit,), certain)


def _without(facts: Facts, statement: Statement) -> TextEdit:
    start = blank_before(facts.source.text, statement.start)
    return facts.edit(start, statement.end, "")


def _without_param(facts: Facts, name: str) -> TextEdit | None:
    params: tuple[Declared, ...] = facts.program.header.params if facts.program else ()
    index = next((i for i, p in enumerate(params) if p.name.text == name), None)
    if index is None or len(params) < 2:
        return None
    if index + 1 < len(params):
        return facts.edit(params[index].name.start, params[index + 1].name.start, "")
    return facts.edit(params[index - 1].type.end, params[index].type.end, "")


def out_of_order(facts: Facts, item: Diagnostic) -> Iterator[Fix]:
    """F0104: the statement that assigns the name moves above the one that reads it."""
    assert item.span is not None
    name = facts.text(item.span)
    reader = facts.statement_at(facts.start(item.span))
    makers = [s for s in facts.statements if any(w.text == name for w in s.targets)]
    if reader is None or len(makers) != 1 or makers[0].start <= reader.start:
        return
    maker, text = makers[0], facts.source.text
    moved = text[maker.start : maker.end]
    indent = text[blank_before(text, reader.start) : reader.start] or " "
    edits = (facts.edit(reader.start, reader.start, moved + indent), _without(facts, maker))
    certain = CERTAIN if facts.improves(edits, "F0104") else GUESS
    yield Fix(f"move the statement of '{name}' up", edits, certain)
