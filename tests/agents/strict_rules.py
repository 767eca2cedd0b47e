"""The published rules of strict schemas, as a checker: of OpenAI's and of Anthropic's.

OpenAI, "Structured outputs: supported schemas": the root is an object and no `anyOf`; every object
closed, every key required; nesting of 10 levels (5 on older models), 5,000 properties, 120,000
characters of names and enum values, 1,000 enum values, 15,000 characters in one enum of more than
250; members of an `anyOf` told apart by their first key. Anthropic, "Structured outputs: JSON
Schema limitations": no recursion, no external `$ref`, enums of plain values, no bounds of numbers
and lengths, `minItems` of 0 or 1, patterns without look-arounds, back-references and word
boundaries; 16 keys with a union, 24 optional ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

KEYWORDS = {
    "type",
    "description",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minItems",
    "enum",
    "pattern",
    "anyOf",
    "$ref",
    "$defs",
}
TYPES = {"object", "array", "string", "number", "integer", "boolean"}


def violations(schema: dict[str, Any], depth: int = 5) -> list[str]:
    """Every rule that is broken, with its place."""
    recursive = list(_recursive(schema))
    return recursive or [*_root(schema), *_walk(schema, "#"), *_sizes(schema, depth)]


def _root(schema: dict[str, Any]) -> Iterator[str]:
    if schema.get("type") != "object" or "anyOf" in schema:
        yield "#: the root must be an object, not a union"


def _walk(schema: Any, at: str) -> Iterator[str]:
    for keyword in set(schema) - KEYWORDS:
        yield f"{at}: keyword {keyword}"
    if "$ref" in schema:
        if set(schema) != {"$ref"} or not schema["$ref"].startswith("#/$defs/"):
            yield f"{at}: a reference with siblings, or out of the document"
        return
    if "anyOf" in schema:
        yield from _union(schema["anyOf"], at)
    elif not isinstance(schema.get("type"), str) or schema["type"] not in TYPES:
        yield f"{at}: type {schema.get('type')}"
    yield from (f"{at}: {rule}" for rule in _broken(schema))
    if "items" in schema:
        yield from _walk(schema["items"], f"{at}/items")
    for group in ("properties", "$defs"):
        for key, inner in schema.get(group, {}).items():
            yield from _walk(inner, f"{at}/{group}/{key}")


def _broken(schema: Any) -> Iterator[str]:
    """Rules of one place, without what is below it."""
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            yield "not closed"
        if schema.get("required") != list(schema.get("properties", {})):
            yield "a key is not required"
    if schema.get("minItems", 0) not in (0, 1):
        yield "minItems"
    if not all(isinstance(v, str | int | float | bool) for v in schema.get("enum", ["x"])):
        yield "enum of values that are not plain"
    if re.search(r"\(\?|\\[1-9bB]|\{\d{3,}", schema.get("pattern", "")):
        yield "pattern"


def _union(members: list[Any], at: str) -> Iterator[str]:
    seen: set[tuple[str, str]] = set()
    for index, member in enumerate(members):
        yield from _walk(member, f"{at}/anyOf/{index}")
        key, first = next(iter(member["properties"].items()))
        for value in first.get("enum", [""]):
            if (key, value) in seen:
                yield f"{at}/anyOf/{index}: first key {key} {value} is not its own"
            seen.add((key, value))


def _recursive(schema: dict[str, Any]) -> Iterator[str]:
    definitions = schema.get("$defs", {})

    def references(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            if "$ref" in part:
                yield part["$ref"].rpartition("/")[2]
            for inner in part.values():
                yield from references(inner)
        elif isinstance(part, list):
            for inner in part:
                yield from references(inner)

    def reach(name: str, path: tuple[str, ...]) -> Iterator[str]:
        if name in path:
            yield f"#/$defs/{name}: recursive"
            return
        for other in references(definitions[name]):
            yield from reach(other, (*path, name))

    for name in definitions:
        yield from reach(name, ())


def depth_of(schema: Any, definitions: Any) -> int:
    """Levels of objects, lists and values, the root being the first."""
    if "$ref" in schema:
        return depth_of(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", [])]
    inner += [schema["items"]] if "items" in schema else []
    deepest = max((depth_of(part, definitions) for part in inner), default=0)
    return deepest + ("anyOf" not in schema)


def _parts(schema: Any) -> Iterator[Any]:
    yield schema
    for group in ("properties", "$defs"):
        for inner in schema.get(group, {}).values():
            yield from _parts(inner)
    for inner in [*schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]:
        yield from _parts(inner)


def sizes(schema: dict[str, Any]) -> dict[str, int]:
    """What the published limits count."""
    parts = list(_parts(schema))
    names = [key for p in parts for group in ("properties", "$defs") for key in p.get(group, {})]
    values = [str(v) for p in parts for v in p.get("enum", [])]
    return {
        "depth": depth_of(schema, schema.get("$defs", {})),
        "properties": sum(len(p.get("properties", {})) for p in parts),
        "characters": sum(map(len, [*names, *values])),
        "enum values": len(values),
        "longest enum": max((len(p.get("enum", [])) for p in parts), default=0),
        "unions": sum("anyOf" in p or isinstance(p.get("type"), list) for p in parts),
        "optional": sum(len(p.get("properties", {})) - len(p.get("required", [])) for p in parts),
    }


def _sizes(schema: dict[str, Any], depth: int) -> Iterator[str]:
    limits = {
        "depth": depth,
        "properties": 5000,
        "characters": 120_000,
        "enum values": 1000,
        "longest enum": 250,
        "unions": 16,
        "optional": 0,
    }
    for name, value in sizes(schema).items():
        if value > limits[name]:
            yield f"#: {name} {value} > {limits[name]}"
