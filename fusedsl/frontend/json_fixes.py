"""From diagnostics of a JSON graph to diagnostics with fixes, root causes only.

The same repairs as those of a text, as operations of RFC 6902.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fusedsl.diagnostics import (
    CERTAIN,
    GUESS,
    Diagnostic,
    Fix,
    FusedslError,
    JsonEdit,
    Related,
    closest,
    single_near,
)
from fusedsl.frontend.assemble import Assembler
from fusedsl.frontend.json_model import GraphModel
from fusedsl.frontend.json_patch import at, patched
from fusedsl.frontend.problems import OTHER_DTYPES
from fusedsl.ir import Block, DType, TypeProblem, infer_types

#: Trial readings for one graph, at most.
TRIALS = 32


@dataclass
class JsonFacts:
    """A graph with mistakes, read as far as that went. Without the right shape there is neither
    model nor assembler. `read` gives the diagnostics of another value."""

    data: Any
    model: GraphModel | None
    out: Assembler | None
    items: Sequence[Diagnostic]
    read: Callable[[Any], Sequence[Diagnostic]]
    trials: int = field(default=TRIALS)

    def value(self, item: Diagnostic) -> Any:
        """What stands at the mistake, None if nothing does."""
        try:
            return at(self.data, item.pointer or "")
        except (KeyError, IndexError, ValueError, TypeError):
            return None

    def names(self, code: str) -> list[str]:
        """The names reported with that code, each once."""
        found = (self.value(d) for d in self.items if d.code == code)
        return list(dict.fromkeys(n for n in found if isinstance(n, str)))

    def block(self, pointer: str) -> Block | None:
        """The block of the node that a pointer leads into."""
        match = re.match(r"/nodes/(\d+)", pointer)
        if match is None or self.model is None or self.out is None:
            return None
        return self.out.library.get(self.model.nodes[int(match[1])].op)

    def improves(self, fix: Fix) -> bool:
        """Whether a trial reading has fewer mistakes."""
        if self.trials <= 0 or self.model is None or len(self.model.nodes) > 200:
            return False
        self.trials -= 1
        codes = Counter(d.code for d in self.read(patched(self.data, [fix])))
        return codes.total() < len(self.items)


def with_json_fixes(error: FusedslError, facts: JsonFacts) -> FusedslError:
    """The same error: each diagnostic with its fixes, what only follows from another left out."""
    items: list[Diagnostic] = []
    for item in error.diagnostics:
        fixer = _FIXERS.get(item.code)
        found = list(fixer(facts, item)) if fixer and item.pointer is not None else []
        items.append(replace(item, fixes=tuple(sorted(found, key=lambda f: not f.certain))))
    return FusedslError(_roots(facts, items), error.source, error.truncated)


def _roots(facts: JsonFacts, items: list[Diagnostic]) -> list[Diagnostic]:
    mended: dict[str, int] = {}
    for index, item in enumerate(items):
        for edit in item.fixes[0].edits if item.fixes and item.fixes[0].certain else ():
            if item.code in ("F0202", "F0203", "F0204", "F0301") and isinstance(edit, JsonEdit):
                mended.setdefault(str(edit.value), index)
                mended.setdefault(edit.pointer, index)
    kept = dict(enumerate(items))
    for index, item in enumerate(items):
        if item.code not in ("F0202", "F0205"):
            continue
        root = mended.get(str(facts.value(item)), mended.get(item.pointer or ""))
        if root is None or root == index or items[root].code == item.code:
            continue
        del kept[index]
        related = Related(item.message, pointer=item.pointer)
        kept[root] = replace(kept[root], related=(*kept[root].related, related))
    return list(kept.values())


def _swap(item: Diagnostic, certain: str | None, guess: str | None = None) -> Iterator[Fix]:
    value = certain or guess
    if value:
        edit = JsonEdit("replace", item.pointer or "", value)
        yield Fix(f"write '{value}'", (edit,), CERTAIN if certain else GUESS)


def _extra_key(facts: JsonFacts, item: Diagnostic) -> Iterator[Fix]:
    match = re.fullmatch(r"the key '(.*)' is not known here", item.message)
    if match and re.fullmatch(r"\w+", match[1]):
        pointer = item.pointer or ""
        pointer += "" if pointer.endswith(f"/{match[1]}") else f"/{match[1]}"
        yield Fix(f"take '{match[1]}' out", (JsonEdit("remove", pointer),), GUESS)


def _out_of_order(facts: JsonFacts, item: Diagnostic) -> Iterator[Fix]:
    match = re.fullmatch(r"move (/nodes/\d+) before (/nodes/\d+)", item.fix or "")
    if match:
        fix = Fix(item.fix or "", (JsonEdit("move", match[2], source=match[1]),), CERTAIN)
        yield fix if facts.improves(fix) else replace(fix, applicability=GUESS)


def _unknown_block(facts: JsonFacts, item: Diagnostic) -> Iterator[Fix]:
    name = facts.value(item)
    if facts.out is not None and isinstance(name, str):
        known = [b.name for b in facts.out.library.public()]
        yield from _swap(item, single_near(name, known), closest(name, known))


def _unknown_name(facts: JsonFacts, item: Diagnostic) -> Iterator[Fix]:
    name = facts.value(item)
    if facts.out is None or not isinstance(name, str):
        return
    unread = facts.names("F0205")
    known = [*facts.out.params, *facts.out.builder.types, *unread]
    meant = single_near(name, unread) or single_near(name, known)
    yield from _swap(item, meant, item.suggestion)


def _defined_twice(facts: JsonFacts, item: Diagnostic) -> Iterator[Fix]:
    missing = facts.names("F0202")
    yield from _swap(item, missing[0] if len(missing) == 1 else None, item.suggestion)


def _unassigned(facts: JsonFacts, item: Diagnostic) -> Iterator[Fix]:
    name = facts.value(item)
    if facts.out is None or name in facts.out.params:
        return
    places = [d.pointer for d in facts.items if d.code == "F0205" and "/results/" in str(d.pointer)]
    for pointer in places:
        edit = JsonEdit("replace", pointer or "", name)
        yield Fix(f"call it '{name}'", (edit,), CERTAIN if len(places) == 1 else GUESS)


def _unused(facts: JsonFacts, item: Diagnostic) -> Iterator[Fix]:
    match = re.match(r"/(nodes|params)/\d+", item.pointer or "")
    if match:
        edit = JsonEdit("remove", match[0])
        yield Fix(f"take {match[0]} out", (edit,), CERTAIN)


def _unknown_dtype(facts: JsonFacts, item: Diagnostic) -> Iterator[Fix]:
    name = str(facts.value(item))
    meant = OTHER_DTYPES.get(name.lower()) or single_near(name, [d.value for d in DType])
    yield from _swap(item, meant, item.suggestion)


def _operands(facts: JsonFacts, item: Diagnostic) -> Iterator[Fix]:
    """A number among the operands that an attribute accepts."""
    pointer, value = item.pointer or "", facts.value(item)
    block = facts.block(pointer)
    if block is not None and re.fullmatch(r"/nodes/\d+", pointer):
        yield from _missing_operand(facts, item, block)
    match = re.fullmatch(r"(/nodes/\d+)/operands/\d+", pointer)
    if block is None or match is None or isinstance(value, bool):
        return
    if not isinstance(value, int | float):
        return
    given = at(facts.data, match[1]).get("attrs", {})
    kinds = ("float", "int", "dim") if isinstance(value, int) else ("float",)
    keys = [
        name
        for name, spec in block.all_attrs.items()
        if name not in given and spec.kind in kinds and spec.coerce(value) is not None
    ]
    for key in keys if "attrs" in at(facts.data, match[1]) else ():
        edits = (JsonEdit("add", f"{match[1]}/attrs/{key}", value), JsonEdit("remove", pointer))
        yield Fix(f"make it the attribute {key}", edits, CERTAIN if len(keys) == 1 else GUESS)


def _missing_operand(facts: JsonFacts, item: Diagnostic, block: Block) -> Iterator[Fix]:
    """The only name that nobody reads, where one operand is missing at the end."""
    given = facts.value(item).get("operands", [])
    if len(given) != block.min_operands - 1:
        return
    for name in facts.names("F0205"):
        edit = JsonEdit("add", f"{item.pointer}/operands/-", name)
        fix = Fix(f"pass '{name}' for '{block.operands[len(given)].name}'", (edit,), CERTAIN)
        if facts.improves(fix):
            yield fix
            return


def _unknown_attribute(facts: JsonFacts, item: Diagnostic) -> Iterator[Fix]:
    pointer = item.pointer or ""
    block, key = facts.block(pointer), pointer.rpartition("/")[2]
    if block is None or key in [op.name for op in block.operands]:
        return
    meant = single_near(key, block.all_attrs)
    guess = meant or closest(key, block.all_attrs)
    if guess:
        edit = JsonEdit("move", f"{pointer.rpartition('/')[0]}/{guess}", source=pointer)
        yield Fix(f"write '{guess}'", (edit,), CERTAIN if meant else GUESS)


def _attribute_value(facts: JsonFacts, item: Diagnostic) -> Iterator[Fix]:
    pointer, value = item.pointer or "", facts.value(item)
    block, key = facts.block(pointer), pointer.rpartition("/")[2]
    spec = block.all_attrs.get(key) if block else None
    if spec is not None and isinstance(value, str):
        choices = [str(c) for c in spec.choices]
        yield from _swap(item, single_near(value, choices), closest(value, choices))


def _types(facts: JsonFacts, item: Diagnostic) -> Iterator[Fix]:
    """Another block with the same operands, or another dtype of a parameter."""
    match = re.match(r"/nodes/\d+", item.pointer or "")
    out = facts.out
    if match is None or out is None:
        return
    found: list[Fix] = []
    for failure in [f for f in out.failures if f.places.get("") and item.pointer]:
        if failure.places[""].pointer != match[0]:
            continue
        for other in out.library.public():
            if other.kind is not failure.block.kind or other == failure.block:
                continue
            if [o.name for o in other.operands] != [o.name for o in failure.block.operands]:
                continue
            try:
                infer_types(other, failure.call, out.builder.types)
            except (TypeProblem, KeyError):
                continue
            edit = JsonEdit("replace", f"{match[0]}/op", other.name)
            found.append(Fix(f"use {other.name}", (edit,), GUESS))
        for index, param in enumerate(facts.model.params if facts.model else ()):
            if item.code == "F0401" and param.name in failure.call.operands and item.expected:
                edit = JsonEdit("replace", f"/params/{index}/dtype", item.expected)
                found.append(Fix(f"declare '{param.name}' as {item.expected}", (edit,), GUESS))
    found = [fix for fix in found if facts.improves(fix)]
    yield from [replace(found[0], applicability=CERTAIN)] if len(found) == 1 else found


def _suggested(facts: JsonFacts, item: Diagnostic) -> Iterator[Fix]:
    yield from _swap(item, item.suggestion)


_FIXERS: dict[str, Callable[[JsonFacts, Diagnostic], Iterator[Fix]]] = {
    "F0103": _extra_key,
    "F0104": _out_of_order,
    "F0201": _unknown_block,
    "F0202": _unknown_name,
    "F0203": _defined_twice,
    "F0204": _unassigned,
    "F0205": _unused,
    "F0206": _unknown_dtype,
    "F0301": _operands,
    "F0302": _unknown_attribute,
    "F0303": _attribute_value,
    "F0401": _types,
    "F0402": _types,
    "F0405": _suggested,
}
