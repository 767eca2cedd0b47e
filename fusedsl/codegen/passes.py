"""Row kernels that pass over a row in pieces of one width, and pass over it again to store.

The statistics of the columns are merged lane by lane, piece after piece, and once across the lanes
at the end: every reduction across lanes is a barrier.
"""

from __future__ import annotations

from fusedsl.codegen.body import Body
from fusedsl.codegen.centres import centre_of_columns, head_centre, may_be_rough
from fusedsl.codegen.helpers import function_name, title
from fusedsl.codegen.statistics import (
    emit_columns,
    merge_all,
    merge_lanes,
    next_statistics,
    per_row,
    recompute,
    reduction_of,
    take_apart,
)
from fusedsl.codegen.templates import constant, fragment
from fusedsl.fuse import KernelPlan, is_reduction
from fusedsl.ir import Node
from fusedsl.schedule import CENTRED_COLUMNS


def looped(kernel: KernelPlan, body: Body) -> dict[str, object]:
    """One pass over the row per level of dependent statistics, and one that stores tiles."""
    passes: list[dict[str, list[str]]] = []
    opening: list[str] = []
    body.load_indices(kernel.steps, opening)
    remaining = emit_columns(body, list(kernel.steps), opening)
    body.keep = "evict_last"  # the row comes by again
    while any(is_reduction(n) for n in remaining):
        ready = next_statistics(remaining)
        centred = _is_wide(kernel) and all(reduction_of(n).about for n in ready)
        passes.append((_centred_pass if centred else lanes_pass)(body, kernel, ready))
        remaining = [n for n in remaining if n not in ready]
        remaining = emit_columns(body, remaining, passes[-1]["after"])
    inside: list[str] = []
    body.values = per_row(body)
    body.keep = "evict_first"
    for node in remaining:
        body.emit(node, inside)
    passes.append(_pass(inside=inside))
    passes[0]["before"] = opening + passes[0]["before"]
    return {"passes": passes, "opening": opening}


def _is_wide(kernel: KernelPlan) -> bool:
    """Whether a program keeps so many lanes of a row that registers run short."""
    return kernel.cols.symbol is None and kernel.cols.factor > CENTRED_COLUMNS


def _pass(**lines: list[str]) -> dict[str, list[str]]:
    names = ("before", "inside", "reduce", "after")
    return {"begin": ["0"], **{name: [] for name in names}, **lines}


def lanes_pass(
    body: Body,
    kernel: KernelPlan,
    ready: list[Node],
    width: str = "BLOCK_N",
    total: str = "N",
    held: str = "held",
) -> dict[str, list[str]]:
    """A pass over rows of `total` columns, `width` at a time, with a state for each lane; `held`
    names how many columns each lane held."""
    made = _pass()
    outer = per_row(body)
    body.values = dict(outer)
    running: dict[str, list[str]] = {}
    for node in ready:
        recompute(body, kernel, node.inputs[0], made["inside"])
        running[node.name] = body.state_names(node, "_lanes")
        for name, identity in zip(running[node.name], reduction_of(node).identity, strict=True):
            slots = (name, constant(identity), "BLOCK_M", width)
            made["before"].append(fragment("lanes", *slots))
        made["inside"].append(title(node))
        merge_lanes(body, node, f"start // {width}", running[node.name], made["inside"])
    body.values = dict(outer)
    for node in ready:
        states = merge_all(body, node, running[node.name], held, made["reduce"])
        made["after"].append(title(node))
        body.finish(node, states, total, made["after"])
    return made


def _centred_pass(body: Body, kernel: KernelPlan, ready: list[Node]) -> dict[str, list[str]]:
    """A pass that takes statistics about a mean, as sums of what lies apart from that of the first
    columns: fewer registers for each lane than a mean of its own."""
    rough = may_be_rough(kernel, body)
    made = _pass(begin=["0" if rough else "BLOCK_N"])
    outer = per_row(body)
    body.values = dict(outer)
    running = {node.name: body.state_names(node, "_lanes") for node in ready}
    start = _from_head if rough else _first_piece
    first = [start(body, kernel, n, running[n.name], made["before"]) for n in ready]
    body.values = dict(outer)
    for node, centre in zip(ready, first, strict=True):
        recompute(body, kernel, node.inputs[0], made["inside"])
        made["inside"].append(title(node))
        piece = body.rounded(node.inputs[0], made["inside"])
        names = body.state_names(node, "_apart")
        take_apart(body, reduction_of(node).about[1], piece, centre, names, made["inside"])
        lanes = running[node.name]
        made["inside"] += [fragment("add_to", a, b) for a, b in zip(lanes, names, strict=True)]
        states = body.state_names(node)
        about = function_name(reduction_of(node).about[2])
        made["reduce"].append(fragment("call", states, about, [centre, *lanes, "N"]))
        running[node.name] = states
    body.values = dict(outer)
    for node in ready:
        made["after"].append(title(node))
        body.finish(node, running[node.name], "N", made["after"])
    return made


def _from_head(
    body: Body, kernel: KernelPlan, node: Node, running: list[str], lines: list[str]
) -> str:
    """The mean of the first few columns of each row; nothing lies apart from it yet."""
    centre = body.namer.fresh(f"{node.name}_centre")
    head_centre(body, kernel, node, centre, lines)
    lines += fragment("segment", 0, "BLOCK_N", "N", False).split("\n")
    lines += [fragment("lanes", name, "0.0", "BLOCK_M", "BLOCK_N") for name in running]
    return centre


def _first_piece(
    body: Body, kernel: KernelPlan, node: Node, running: list[str], lines: list[str]
) -> str:
    """The mean of the first columns of each row, and what lies apart from it in their lanes."""
    lines += fragment("segment", 0, "BLOCK_N", "N", False).split("\n")
    lines.append(fragment("whole_tiles", "BLOCK_N"))
    centre = body.namer.fresh(f"{node.name}_centre")
    piece = centre_of_columns(body, kernel, node, centre, lines)
    take_apart(body, reduction_of(node).about[1], piece, centre, running, lines)
    return centre


def statistics_pass(
    body: Body, kernel: KernelPlan, ready: list[Node], width: str, total: str
) -> dict[str, list[str]]:
    """A pass over rows of `total` columns, `width` at a time, that takes statistics."""
    count = f"min({width}, {total} - start)"
    before: list[str] = []
    inside: list[str] = []
    after: list[str] = []
    outer = per_row(body)
    body.values = dict(outer)
    for node in ready:
        recompute(body, kernel, node.inputs[0], inside)
        reduction = reduction_of(node)
        running = body.state_names(node, "_all")
        for name, identity in zip(running, reduction.identity, strict=True):
            before.append(fragment("state", name, constant(identity), "BLOCK_M"))
        inside.append(title(node))
        states = body.chunk(node, node.inputs[0], count, inside)
        merge = function_name(reduction.merge)
        arguments = ["start", *running, count, *states]
        inside.append(fragment("call", running, merge, arguments))
        after.append(title(node))
        made = body.values
        body.values = dict(outer)
        body.finish(node, running, total, after)
        outer = body.values
        body.values = {**made, **outer}
    body.values = dict(outer)
    return {"before": before, "inside": inside, "after": after}
