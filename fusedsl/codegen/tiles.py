"""What a projection's tile leaves of its rows: per-tile states, and values picked by index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusedsl.codegen.helpers import function_name
from fusedsl.codegen.templates import constant, fragment
from fusedsl.fuse import KernelPlan
from fusedsl.ir import ONE, Dim, Node

if TYPE_CHECKING:
    from fusedsl.codegen.body import Body

#: Widest row whose per-tile states are merged without a loop; wider ones would spill.
UNROLLED_ROW = 4096


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
    """Store the state of a tile's part of each row; its pieces are merged first."""
    reduction = node.block.reduction
    assert reduction is not None
    one_piece = (body.kernel.paired and not body.staged) or body.kernel.few_rows
    # a piece may lie past the last column as a whole, so that only whole tiles are all live
    lines.append(fragment("whole_tiles", body.width if one_piece else f"({body.width} * SIDES)"))
    count = f"min({body.width}, N - col)"
    states = body.chunk(node, node.inputs[0], count, lines)
    pointers = [body.pointer(result.name) for result in node.results]
    if one_piece:
        lines += [fragment("store_state", s, p) for s, p in zip(states, pointers, strict=True)]
        return
    held, merge = body.state_names(node, "_tile"), function_name(reduction.merge)
    before, now = f"min(side * {body.width}, N - col0)", f"max(0, {count})"
    lines += fragment("store_tile_state", held, states, pointers, merge, before, now).split("\n")


def merges_one_row(kernel: KernelPlan, node: Node) -> bool:
    """Whether the states that a node merges are of one row, which serves all of the kernel's."""
    return node.type.rows == ONE != kernel.rows


def merge_states(body: Body, node: Node, lines: list[str]) -> None:
    """Merge the states that the tiles of each row left, some of them at a time."""
    reduction = node.block.reduction
    assert reduction is not None
    first = node.inputs[0]
    tiles = body.arg("_TILES", "tiles", first)
    group = body.arg("_TILES_GROUP", "tiles_group", first)
    piece = body.arg("_TILE_WIDTH", "tile_width", first)
    width = node.attr("width")
    assert isinstance(width, Dim)
    total = body.dim(width)
    running = body.state_names(node, "_all")
    # Gluon is told how rows and the pieces of one lie
    of_rows, of_pieces = (("64", "ROWS"), ("COLS",)) if body.staged else (("BLOCK_M",), ())
    for name, identity in zip(running, reduction.identity, strict=True):
        lines.append(fragment("state", name, constant(identity), *of_rows))
    at, number = body.namer.fresh(f"{first}_at"), body.namer.fresh(f"{first}_tile")
    inside = fragment("piece_numbers", number, at, group, *of_pieces).split("\n")
    blocks: list[str] = []
    rows = ("1", "(rows64 * 0)") if merges_one_row(body.kernel, node) else ("M", "rows64")
    for name, identity in zip(node.inputs, reduction.identity, strict=True):
        blocks.append(body.namer.fresh(f"{name}_pieces"))
        slots = (blocks[-1], body.pointer(name), number, tiles, constant(identity), *rows)
        inside += fragment("load_pieces", *slots).split("\n")
    counts = body.namer.fresh(f"{first}_counts")
    inside += fragment("piece_counts", counts, number, piece, total).split("\n")
    states = body.state_names(node)
    merge_all, merge = function_name(reduction.merge_all), function_name(reduction.merge)
    inside.append(fragment("call", states, merge_all, [*blocks, counts]))
    before, after = body.namer.fresh(f"{first}_before"), body.namer.fresh(f"{first}_now")
    inside += fragment("piece_span", before, after, at, group, piece, total).split("\n")
    inside.append(fragment("call", running, merge, [before, *running, after, *states]))
    # a loop here would keep the persistent loop from overlapping one tile with the next
    narrow = width.is_static and width.factor <= UNROLLED_ROW
    unrolled = narrow and (body.descriptors or body.staged)
    lines.append(fragment("piece_loop", at, tiles, group, unrolled))
    lines += [f"    {line}" for line in inside]
    body.finish(node, running, total, lines)
