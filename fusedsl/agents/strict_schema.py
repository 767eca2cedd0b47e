"""The JSON Schema of a tool call, strict: what hosted models can be held to, token by token.

The form is flat. A node is one closed object: `op` first, then its operands and attributes by name,
then the name of its result; every key is there.

    {"op": "rms_norm", "x": "x", "gain": "gain", "eps": 1e-06, "offset": 0, "cast": "llama",
     "out_dtype": "auto", "result": "h"}

Values are texts: a name; "" for an operand that is left out; digits for a number where the
block takes one ("0.5"). So no key has two types, and of all keys only the list of nodes holds a
union: blocks with the same keys share one of its members, and no block is in two.

Left out are keywords that a provider refuses: `oneOf`, `default`, bounds of numbers, lengths,
counts over 1. `strict_json` checks what they would have said.
"""

from __future__ import annotations

from typing import Any

from fusedsl.blocks import library as standard_library
from fusedsl.ir import Attr, Block, BlockLibrary, DType

Schema = dict[str, Any]

#: Texts with a form of their own.
NAME: Schema = {
    "type": "string",
    "description": "letters, digits, '_'",
    "pattern": "^[A-Za-z_][A-Za-z0-9_]*$",
}
OPTIONAL: Schema = {
    "type": "string",
    "description": "a name, or empty: left out",
    "pattern": "^([A-Za-z_][A-Za-z0-9_]*)?$",
}
SCALAR: Schema = {
    "type": "string",
    "description": "a name or a number, as '0.5'",
    "pattern": "^([A-Za-z_][A-Za-z0-9_]*|[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?)$",
}
DIM: Schema = {
    "type": "string",
    "description": "'4096', 'M' or '2*M'",
    "pattern": "^([0-9]+|([0-9]+[*])?[A-Za-z_][A-Za-z0-9_]*)$",
}
DEFINITIONS = {"name": NAME, "optional": OPTIONAL, "scalar": SCALAR, "dim": DIM}


def strict_schema(*, library: BlockLibrary | None = None, internal: bool = False) -> Schema:
    """The schema, for the public blocks; with `internal`, for those that only rules make as well.

    It obeys the published rules of strict tools of two providers: closed objects, every key
    required, `anyOf` below the root only, its members told apart by their first key.
    """
    blocks = library or standard_library()
    chosen = tuple(blocks.values()) if internal else blocks.public()
    return {
        "type": "object",
        "description": "a kernel: nodes in order, each value assigned once and used",
        **_closed(
            {
                "name": {"$ref": "#/$defs/name"},
                "params": {"type": "array", "items": {"$ref": "#/$defs/param"}},
                "nodes": _list({"anyOf": _node_schemas(chosen)}),
                "outputs": _list({"$ref": "#/$defs/name"}),
            }
        ),
        "$defs": {**DEFINITIONS, "param": _PARAM},
    }


def _list(items: Schema) -> Schema:
    """Not empty: the one count that both providers know."""
    return {"type": "array", "items": items, "minItems": 1}


def _closed(properties: Schema) -> Schema:
    return {
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_PARAM: Schema = {
    "type": "object",
    **_closed(
        {
            "name": {"$ref": "#/$defs/name"},
            "dtype": {"type": "string", "enum": [d.value for d in DType]},
            "shape": {**_list({"$ref": "#/$defs/dim"}), "description": "one or two dimensions"},
            "weight": {"type": "boolean", "description": "it stays put between calls"},
        }
    ),
}


def _node_schemas(blocks: tuple[Block, ...]) -> list[Schema]:
    """One for each set of keys, the blocks that share it as values of `op`."""
    found: dict[str, tuple[Schema, list[Block]]] = {}
    for block in sorted(blocks, key=lambda b: b.name):
        keys = node_keys(block)
        found.setdefault(repr(keys), (keys, []))[1].append(block)
    return [_node_schema(keys, sharing) for keys, sharing in found.values()]


def _node_schema(keys: Schema, blocks: list[Block]) -> Schema:
    op = {
        "type": "string",
        "enum": [b.name for b in blocks],
        "description": "; ".join(f"{b.name}: {b.doc}" for b in blocks),
    }
    return {"type": "object", **_closed({"op": op, **keys})}


def node_keys(block: Block) -> Schema:
    """The keys of a block's node after `op`, each with its schema, in order.

    Raises ValueError where a block's operands, attributes and results share a name.
    """
    keys: list[tuple[str, Schema]] = []
    for operand in block.operands:
        form = "scalar" if operand.scalar else "optional" if operand.optional else "name"
        keys.append((operand.name, {"$ref": f"#/$defs/{form}"}))
    keys += [(name, _attr_schema(attr)) for name, attr in block.all_attrs.items()]
    keys += [(name, {"$ref": "#/$defs/name"}) for name in result_keys(block)]
    found = dict(keys)
    if len(found) < len(keys) or "op" in found:
        raise ValueError(f"block {block.name!r}: two keys of its strict form have one name")
    return found


def result_keys(block: Block) -> tuple[str, ...]:
    """`result`, or `result_mean`, `result_var` for a block with several."""
    return tuple(f"result_{name}" for name in block.results) or ("result",)


_TYPES = {"float": "number", "int": "integer", "bool": "boolean", "str": "string"}


def _attr_schema(attr: Attr) -> Schema:
    if attr.kind == "dim":
        return {"$ref": "#/$defs/dim"}
    schema: Schema = {"type": _TYPES[attr.kind]}
    if attr.choices:
        schema["enum"] = list(attr.choices)
    elif attr.kind == "str":
        return {"$ref": "#/$defs/name"}
    notes = [attr.doc] if attr.doc and attr.name != "out_dtype" else []
    if attr.minimum is not None:
        notes.append(f"> {attr.minimum:g}")
    if not attr.required:
        notes.append(f"usually {attr.default}")
    return {**schema, "description": ", ".join(notes)} if notes else schema
