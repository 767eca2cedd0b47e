"""What a projection's tile leaves of its rows: per-tile states, and values picked by index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusedsl.codegen.helpers import function_name
from fusedsl.codegen.templates import fragment
from fusedsl.ir import Node

if TYPE_CHECKING:
    from fusedsl.codegen.body import Body


def store_pick(body: Body, node: Node, lines: list[str]) -> None:
    """Store a value that one tile of each row holds: that tile stores it, no other does."""
    reduction = node.block.reduction
    assert reduction is not None
    states = body.chunk(node, node.inputs[0], f"min({body.width}, N - col)", lines)
    index, name = body.index(node, lines), body.namer.fresh(node.name)
    finish, owner = function_name(reduction.finish), function_name(reduction.owner)
    lines.append(fragment("call", [name], finish, [*states, index, "WIDTH=N"]))
    dtype = node.type.dtype.triton
    pointer, stride = body.pointer(node.name), body.stride(node.name)
    owns = f"{owner}({index}, col, col + {body.width}, WIDTH=N)"
    lines.append(fragment("store_owned", name, pointer, stride, dtype, owns))


def store_state(body: Body, node: Node, lines: list[str]) -> None:
    """Store the state of a tile's part of each row; its two sides are merged first."""
    reduction = node.block.reduction
    assert reduction is not None
    lines.append(fragment("whole_tiles", body.width))
    count = f"min({body.width}, N - col)"
    states = body.chunk(node, node.inputs[0], count, lines)
    pointers = [body.pointer(result.name) for result in node.results]
    if body.kernel.paired or body.kernel.few_rows:  # tiles of one piece
        lines += [fragment("store_state", s, p) for s, p in zip(states, pointers, strict=True)]
        return
    held, merge = body.state_names(node, "_tile"), function_name(reduction.merge)
    slots = (held, states, pointers, merge, f"min({body.width}, N - col0)", f"max(0, {count})")
    lines += fragment("store_tile_state", *slots).split("\n")
