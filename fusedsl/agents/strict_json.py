"""The strict JSON form: to graph and back, losslessly. The schema is in `strict_schema`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from fusedsl.agents.strict_schema import node_keys, result_keys, strict_schema
from fusedsl.blocks import library as standard_library
from fusedsl.diagnostics import (
    LIMIT,
    Diagnostic,
    Fix,
    FusedslError,
    JsonEdit,
    did_you_mean,
)
from fusedsl.frontend import from_json, to_json
from fusedsl.ir import Block, BlockLibrary, Dim, Graph, Node

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def to_strict_json(graph: Graph) -> dict[str, Any]:
    """The strict form of a graph; `from_strict_json` gives the same graph.

    Blocks that only rules make are written too; `strict_schema(internal=True)` has them.
    """
    plain = to_json(graph)
    for param in plain["params"]:
        param["shape"] = [str(dim) for dim in param["shape"]]
    return {
        "name": plain["name"],
        "params": plain["params"],
        "nodes": [_strict_node(node) for node in graph.nodes],
        "outputs": plain["outputs"],
    }


def _strict_node(node: Node) -> dict[str, Any]:
    block = node.block
    operands = [*node.operands, *[None] * (len(block.operands) - len(node.operands))]
    out: dict[str, Any] = {"op": block.name}
    for spec, operand in zip(block.operands, operands, strict=True):
        out[spec.name] = "" if operand is None else _operand_text(operand)
    given = dict(node.attrs)
    for name, attr in block.all_attrs.items():
        value = given.get(name, attr.default)
        out[name] = str(value) if isinstance(value, Dim) else value
    out |= zip(result_keys(block), (r.name for r in node.results), strict=True)
    return out


def _operand_text(operand: str | float) -> str:
    return operand if isinstance(operand, str) else repr(operand)


def from_strict_json(
    data: Mapping[str, Any] | str, *, library: BlockLibrary | None = None
) -> Graph:
    """Read a graph from the strict form, as text or as its value.

    Raises FusedslError with every independent mistake, placed by JSON pointer: F0103 where the
    value does not have the shape of `strict_schema`, F0201 where a block is unknown, and what
    `from_json` raises.
    """
    blocks = library or standard_library()
    value = _decoded(data) if isinstance(data, str) else data
    problems = list(_shape_problems(value, blocks))[:LIMIT]
    if problems:
        raise FusedslError(problems)
    assert isinstance(value, Mapping)
    plain, pointers = _plain(value, blocks)
    try:
        return from_json(plain, library=blocks)
    except FusedslError as error:
        placed = (_placed(d, pointers) for d in error.diagnostics)
        raise FusedslError(placed, truncated=error.truncated) from None


def _placed(item: Diagnostic, pointers: dict[str, str]) -> Diagnostic:
    """The same mistake in the strict form. Of the fixes those stay that only replace names."""
    related = tuple(replace(r, pointer=_strict(r.pointer, pointers)) for r in item.related)
    fixes = [_strict_fix(fix, pointers) for fix in item.fixes]
    return replace(
        item,
        pointer=_strict(item.pointer, pointers),
        related=related,
        fixes=tuple(fix for fix in fixes if fix is not None),
    )


def _strict_fix(fix: Fix, pointers: dict[str, str]) -> Fix | None:
    edits = [edit for edit in fix.edits if isinstance(edit, JsonEdit) and edit.op == "replace"]
    if len(edits) < len(fix.edits) or any(edit.pointer.endswith("/op") for edit in edits):
        return None
    moved = (replace(edit, pointer=_strict(edit.pointer, pointers) or "") for edit in edits)
    return replace(fix, edits=tuple(moved))


def _strict(pointer: str | None, pointers: dict[str, str]) -> str | None:
    """A pointer into the plain form as one into the strict form."""
    return pointers.get(pointer, pointer) if pointer else pointer


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refused, object_pairs_hook=_pairs)
    except json.JSONDecodeError as error:
        what = f"{error.msg[0].lower()}{error.msg[1:]} (line {error.lineno})"
    except (ValueError, RecursionError) as error:
        what = str(error) or "brackets nested too deeply"
    raise FusedslError(_wrong("", "a JSON object", what))


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(items)
    if len(found) < len(items):
        raise ValueError("a key appears twice in one object")
    return found


# The shape: a reader of the few keywords that the schema is made of


def _shape_problems(value: object, blocks: BlockLibrary) -> Iterator[Diagnostic]:
    standard = blocks is standard_library()
    schema = _schema() if standard else strict_schema(library=blocks, internal=True)
    if not isinstance(value, Mapping):
        yield _wrong("", "an object", _shown(value))
        return
    yield from _check(value, {**schema, "$defs": {}}, "", schema["$defs"])


@cache
def _schema() -> dict[str, Any]:
    return strict_schema(internal=True)


def _check(value: Any, schema: Any, at: str, defs: Any) -> Iterator[Diagnostic]:
    if "$ref" in schema:
        schema = defs[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        yield from _check_node(value, schema["anyOf"], at, defs)
        return
    kind = schema["type"]
    if not _is(value, kind):
        yield _wrong(at, _article(kind), _shown(value))
    elif kind == "object":
        yield from _check_object(value, schema, at, defs)
    elif kind == "array":
        if len(value) < schema.get("minItems", 0):
            yield _wrong(at, "a list that is not empty", "an empty list")
        for index, item in enumerate(value):
            yield from _check(item, schema["items"], f"{at}/{index}", defs)
    elif value not in schema.get("enum", [value]):
        choices = [str(choice) for choice in schema["enum"]]
        expected = f"one of {', '.join(choices)}"
        yield _wrong(at, expected, _shown(value), did_you_mean(str(value), choices, "values"))
    elif not re.fullmatch(schema.get("pattern", "(?s:.*)").strip("^$"), str(value)):
        yield _wrong(at, schema["description"], _shown(value))


def _check_object(value: Any, schema: Any, at: str, defs: Any) -> Iterator[Diagnostic]:
    known = schema["properties"]
    for key in value:
        if key not in known:
            fix = did_you_mean(str(key), known, "keys")
            yield _wrong(at, "known keys only", f"'{key}'", fix)
    for key, inner in known.items():
        if key not in value:
            yield _wrong(at, f"the key '{key}'", "no such key", f"add '{key}'")
        else:
            yield from _check(value[key], inner, f"{at}/{key}", defs)


def _check_node(value: Any, members: list[Any], at: str, defs: Any) -> Iterator[Diagnostic]:
    """The member that `op` names; no other is looked at."""
    if not isinstance(value, Mapping) or "op" not in value:
        yield _wrong(at, "an object with 'op'", _shown(value))
        return
    for member in members:
        if value["op"] in member["properties"]["op"]["enum"]:
            yield from _check_object(value, member, at, defs)
            return
    names = [name for member in members for name in member["properties"]["op"]["enum"]]
    yield Diagnostic(
        "F0201",
        f"there is no block {_shown(value['op'])}",
        expected="the name of a block",
        got=_shown(value["op"]),
        fix=did_you_mean(str(value["op"]), names, "blocks"),
        pointer=f"{at}/op",
    )


def _is(value: object, kind: str) -> bool:
    if kind in ("integer", "number"):
        types = (int,) if kind == "integer" else (int, float)
        return isinstance(value, types) and not isinstance(value, bool)
    python = {"object": Mapping, "array": list, "string": str, "boolean": bool}[kind]
    return isinstance(value, python)


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "an object"
    text = "a list" if isinstance(value, list) else json.dumps(value, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."


def _wrong(pointer: str, expected: str, got: str, fix: str | None = None) -> Diagnostic:
    return Diagnostic(
        "F0103",
        f"'{pointer}' is not {expected}" if pointer else f"not a strict graph: no {expected}",
        expected=expected,
        got=got,
        fix=fix or f"write {expected}",
        pointer=pointer,
    )


# The plain form


def _plain(value: Mapping[str, Any], blocks: BlockLibrary) -> tuple[dict[str, Any], dict[str, str]]:
    """The plain form, and where each of its pointers leads in the strict one."""
    pointers: dict[str, str] = {}
    nodes: list[dict[str, Any]] = []
    for index, node in enumerate(value["nodes"]):
        block = blocks[node["op"]]
        nodes.append(_plain_node(node, block))
        at = f"/nodes/{index}"
        for position, operand in enumerate(block.operands):
            pointers[f"{at}/operands/{position}"] = f"{at}/{operand.name}"
        for name in block.all_attrs:
            pointers[f"{at}/attrs/{name}"] = f"{at}/{name}"
        for position, key in enumerate(result_keys(block)):
            pointers[f"{at}/results/{position}"] = f"{at}/{key}"
    return {"fusedsl": 1, **value, "nodes": nodes}, pointers


def _plain_node(node: Mapping[str, Any], block: Block) -> dict[str, Any]:
    operands = [_operand(node[op.name], op.scalar) for op in block.operands]
    while operands and operands[-1] is None:
        operands.pop()
    results = [node[key] for key in result_keys(block)]
    attrs = {name: node[name] for name in node_keys(block) if name in block.all_attrs}
    return {"op": block.name, "operands": operands, "attrs": attrs, "results": results}


def _operand(text: str, scalar: bool) -> str | float | None:
    if text == "":
        return None
    return float(text) if scalar and _NUMBER.fullmatch(text) else text
