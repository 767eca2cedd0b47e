"""Row kernels whose rows clusters of programs share: `row_reduction/cluster.py.jinja` filled from a
kernel plan. Gluon, as `specialised`.

PARTS programs share a row, each with its part in shared memory. Each warp has columns of its own,
from the copy that brings them to the store: it waits for nobody but at the row's statistics. Its
states it puts into the shared memory of all programs of the cluster (`st.async`), each of which has
a barrier that is passed when all of them have come; and every warp merges all of them, in the same
order.

Where row vectors are few a cluster takes one row and ends; others begin meanwhile
(`pays_to_stay` says where). Otherwise it stays, with row vectors in registers, and takes row after
row, of which STAGES lie in a ring: in turn t it begins to load that of turn t + LOADS - 1, reduces
that of turn t, and stores that of turn t - LAG, whose states have come meanwhile. The place that it
loads to is that of row t - LAG - 1, stored a turn ago.

The states of row t lie in slot t % SLOTS, and SLOTS = 2 LAG + 2 are enough: who tells row t has
ended turn t - 1, so has seen the states of row t - 1 - LAG of all warps. Each of these was told in
turn t - 1 - LAG of its warp, which had ended turn t - 2 - LAG, so had read those of row
t - 2 - 2 LAG: nobody needs them any more. So the barrier of the slot has been passed then, in every
program: what arrives there counts for row t.

Nobody writes to a program that has ended: it ends when the states of its last row have come from
all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fusedsl.codegen.centres import HEAD_COLUMNS, at_head, centre_of_columns, unbound
from fusedsl.codegen.cluster_body import ClusterBody
from fusedsl.codegen.helpers import function_name, title
from fusedsl.codegen.kernels import Emitted, finish
from fusedsl.codegen.specialised import LANGUAGE, speaks_gluon
from fusedsl.codegen.statistics import (
    emit_columns,
    merge_all,
    next_statistics,
    recompute,
    reduction_of,
    take_apart,
)
from fusedsl.codegen.templates import expanded, fragment
from fusedsl.codegen.values import Var
from fusedsl.fuse import KernelPlan, Plan, is_pick, is_reduction
from fusedsl.ir import Gathers, HalvesOf, Kind, Layout, Node
from fusedsl.schedule import has_room_to_widen, pays_to_stay

_CONFIG = ("BLOCK_N", "PARTS", "READ")

_FUNCTIONS = "row_reduction/cluster_functions.jinja"

#: States that a thread sums, for 8 columns each, over the pieces of a part; of more, each piece is
#: summed over the warp at once.
_LANES = 3

#: What block functions may take of `tl` here.
_LANGUAGE = LANGUAGE | {"div_rn"}

#: The most tiles that are loaded, and that are stored.
_TILES = 2


def can_share_in_cluster(plan: Plan, kernel: KernelPlan) -> bool:
    """Whether a row kernel can be made so: it loads and stores one or two tiles of 16 bits, and
    takes one round of statistics, which are sums or about a mean, or those of a softmax."""
    if kernel.kind is not Kind.ROW_REDUCTION or kernel.cols.symbol is not None:
        return False
    tiles = plan.tiles_read(kernel)
    if not 0 < len(tiles) <= _TILES or not 0 < len(kernel.writes) <= _TILES:
        return False
    if kernel.cols.factor < HEAD_COLUMNS:
        return False
    moved = [plan.type_of(name) for name in (*tiles, *kernel.writes)]
    if any(
        t.layout is not Layout.TILE or t.dtype.bytes != 2 or t.cols != kernel.cols for t in moved
    ):
        return False
    if any(plan.type_of(name).dtype.is_index for name in kernel.reads):
        return False
    found = [node for node in kernel.steps if is_reduction(node)]
    exps = _exps_of(kernel)
    if not found or (next_statistics(list(kernel.steps)) != found and not exps):
        return False
    spread = _spread(kernel, tiles)
    return (
        all(node.inputs[0] in spread for node in found)
        and set(kernel.writes) <= spread
        and all(_is_plain(node) or node in exps for node in kernel.steps)
        and all(speaks_gluon(f, _LANGUAGE) for node in kernel.steps for f in _called(node))
    )


def _spread(kernel: KernelPlan, tiles: Iterable[str]) -> set[str]:
    """The values that are tiles: what elementwise steps make of those that are loaded."""
    found = set(tiles)
    for node in kernel.steps:
        if not is_reduction(node) and found & set(node.inputs):
            found |= {result.name for result in node.results}
    return found


def _exps_of(kernel: KernelPlan) -> tuple[Node, ...]:
    """The largest value of a row and the sum of exponentials about it, where these are all the
    statistics of a kernel: those of a part are about its own largest value."""
    found = tuple(node for node in kernel.steps if is_reduction(node))
    if [node.block.name for node in found] != ["row_max", "row_sum"]:
        return ()
    makers = {result.name: node for node in kernel.steps for result in node.results}
    power = makers.get(found[1].inputs[0])
    apart = makers.get(power.inputs[0]) if power and power.block.name == "exp" else None
    if apart is None or apart.block.name != "sub":
        return ()
    about = (found[0].inputs[0], found[0].name)
    return found if tuple(apart.operands) == about else ()


def _is_plain(node: Node) -> bool:
    """Whether a step is elementwise, or a statistic that is a sum or about a mean."""
    if is_reduction(node):
        return not is_pick(node) and bool(reduction_of(node).adds or reduction_of(node).about)
    laws = (*node.block.laws_of(Gathers), *node.block.laws_of(HalvesOf))
    return node.block.kind is Kind.POINTWISE and not laws


def _called(node: Node) -> tuple[Any, ...]:
    """The functions that are called of a node here."""
    if not is_reduction(node):
        return (node.block.triton,) if node.block.triton is not None else ()
    reduction = reduction_of(node)
    if reduction.about:
        return (*reduction.about, reduction.finish)
    if not reduction.adds:
        return (reduction.finish,)
    return (reduction.lift, reduction.merge_all, reduction.finish)


@dataclass
class _Pass:
    """A pass over the part at hand: lines ahead of it, for each piece of the part, and after."""

    start: list[str] = field(default_factory=list[str])
    lines: list[str] = field(default_factory=list[str])
    end: list[str] = field(default_factory=list[str])


def emit_cluster(plan: Plan, kernel: KernelPlan, *, keep_roundings: bool) -> Emitted:
    """Emit a row kernel whose rows clusters of programs share."""
    stays = pays_to_stay(plan, kernel)
    body = ClusterBody(plan, kernel, False, keep_roundings, "BLOCK_N" if stays else "PIECE")
    body.stays, body.wide = stays, has_room_to_widen(plan, kernel)
    for tile in plan.tiles_read(kernel):
        ring = body.namer.fresh(f"{tile}_ring")
        body.rings[tile] = (ring, body.pointer(tile), body.stride(tile))
    statistics = [node for node in kernel.steps if is_reduction(node)]
    body.held = "next"
    exps = _exps_of(kernel)
    made = _Statistics(body, kernel)
    if exps:
        made.take_exps(exps)
    else:
        made.take_sums(statistics)
    body.values, body.held = {}, "part"
    after: list[str] = []
    rest = emit_columns(body, [n for n in kernel.steps if n not in statistics], after)
    parts = [body.namer.fresh(f"{name}_parts") for name in made.states]
    merge: list[str] = []
    if exps:
        _join_exps(body, exps, parts, merge)
    else:
        at = 0
        for node in statistics:
            count = len(reduction_of(node).identity)
            _join(body, node, parts[at : at + count], made.centres.get(node.name), merge)
            at += count
    rest = emit_columns(body, rest, merge)
    body.load_columns(rest, after)
    final: list[str] = []
    for node in rest:
        body.emit(node, final)
    slots: dict[str, object] = {
        "stays": stays,
        "rings": list(body.rings.values()),
        "states": parts,
        "find": made.passes,
        "opening": after,
        "merge": merge,
        "final": final,
        "centres": list(made.centres.values()),
        "kept": list(body.kept.values()),
        "widened": body.widened,
        "heads": list(body.heads.values()),
        "columns": "rows64" in f"{made.passes}{after}{merge}{final}",
    }
    config = (*_CONFIG, "STAGES" if stays else "SIDES")
    return finish(kernel, body, "row_reduction/cluster.py.jinja", config, **slots)


@dataclass
class _Statistics:
    """The statistics of the part at hand, told to the cluster.

    `states`: names of what is told. `centres`: of a statistic about a mean, by its name, the
    variable that holds the centre of the row that is reduced, and the one for the row that is
    stored. `lean`: states are summed over the warp piece by piece.
    """

    body: ClusterBody
    kernel: KernelPlan
    passes: list[_Pass] = field(default_factory=list[_Pass])
    states: list[str] = field(default_factory=list[str])
    centres: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    lean: bool = False

    def take_sums(self, nodes: list[Node]) -> None:
        """Sums, all in one pass."""
        made = self._begin(nodes)
        self.lean = sum(len(reduction_of(node).identity) for node in nodes) > _LANES
        for node in nodes:
            if reduction_of(node).about:
                self._centre(node, made.start)
        for node in nodes:
            recompute(self.body, self.kernel, node.inputs[0], made.lines)
            made.lines.append(title(node))
            names = self.body.state_names(node, "_lanes")
            if node.name in self.centres:
                piece = self.body.rounded(node.inputs[0], made.lines)
                centre = self.centres[node.name][0]
                take_apart(self.body, reduction_of(node).about[1], piece, centre, names, made.lines)
            else:
                function = function_name(reduction_of(node).lift)
                piece = self.body.masked(node.inputs[0], made.lines)
                made.lines.append(fragment("call", names, function, [piece]))
            for state, lanes in zip(self.body.state_names(node), names, strict=True):
                self._sum(made, state, lanes)

    def take_exps(self, exps: tuple[Node, ...]) -> None:
        """The largest value of a warp's columns, then the sum of exponentials about it."""
        largest, total = exps
        (top,), (sum_,) = self.body.state_names(largest), self.body.state_names(total)
        made = self._begin([largest])
        recompute(self.body, self.kernel, largest.inputs[0], made.lines)
        made.lines.append(title(largest))
        piece = self.body.rounded(largest.inputs[0], made.lines)
        maxima = f"column_maxima({piece}, col_live[None, :], EACH)"
        nothing = "column_maxima(none, none > 0.0, EACH)"
        self._take(made, top, "warp_maxima", nothing, maxima, f"= larger({top}, {maxima})")
        if not self.body.stays:
            made = self._begin([total])
        column = self.body.namer.fresh(largest.name)
        made.lines.append(
            fragment("call", [column], "over_columns", [top, "col_live[None, :]", "EACH", "TILE"])
        )
        self.body.values[largest.name] = Var(column, Layout.TILE)
        recompute(self.body, self.kernel, total.inputs[0], made.lines)
        made.lines.append(title(total))
        (lanes,) = self.body.state_names(total, "_lanes")
        piece = self.body.masked(total.inputs[0], made.lines)
        made.lines.append(
            fragment("call", [lanes], function_name(reduction_of(total).lift), [piece])
        )
        self._sum(made, sum_, lanes)

    def _begin(self, nodes: Iterable[Node]) -> _Pass:
        """A pass for statistics. What it knows ahead are the column vectors that it loads."""
        self.passes.append(made := _Pass())
        self.body.values = {}
        needed = self.kernel.needed(name for node in nodes for name in node.inputs)
        self.body.load_columns(needed, made.start)
        return made

    def _sum(self, made: _Pass, state: str, lanes: str) -> None:
        """Sum what lanes hold, over all pieces, and tell it."""
        sums, nothing = f"column_sums({lanes}, EACH)", "column_sums(none, EACH)"
        if self.lean and not self.body.stays:
            made.start.append(f"{state} = warp_sums({nothing})")
            made.lines.append(f"{state} += warp_sums({sums})")
            self._tell(made, state)
        else:
            self._take(made, state, "warp_sums", nothing, sums, f"+= {sums}")

    def _take(
        self, made: _Pass, state: str, of_warp: str, nothing: str, found: str, joined: str
    ) -> None:
        """Take `found` of what a thread holds, `nothing` `joined` with it over all pieces, then
        what the function `of_warp` makes of it over the warp, and tell it."""
        if self.body.stays:
            made.lines.append(f"{state} = {of_warp}({found})")
        else:
            made.start.append(f"{state} = {nothing}")
            made.lines.append(f"{state} {joined}")
            made.end.append(f"{state} = {of_warp}({state})")
        self._tell(made, state)

    def _tell(self, made: _Pass, state: str) -> None:
        """Put a state to where the programs of the cluster find it, after the pass."""
        at = f"mine + {len(self.states)} * 1024" if self.states else "mine"
        made.end.append(f"tell({at}, mine_told, {state}, tells)")
        self.states.append(state)

    def _centre(self, node: Node, lines: list[str]) -> None:
        """Name the mean of the row's first columns of what a statistic is taken of."""
        body = self.body
        name = body.namer.fresh(f"{node.name}_centre")
        late = body.namer.fresh(f"{node.name}_centre_late") if body.stays else name
        self.centres[node.name] = name, late
        lines += fragment("head_columns").split("\n")
        body.head = True
        with at_head(body):
            centre_of_columns(body, self.kernel, node, name, lines)
        body.head = False
        lines += fragment("part_columns").split("\n")
        lines.append(unbound(name, "TILE"))


def _join(
    body: ClusterBody,
    node: Node,
    parts: list[str],
    centres: tuple[str, str] | None,
    lines: list[str],
) -> None:
    """The statistics of the row that is stored, from the states of all warps."""
    lines.append(title(node))
    if centres:
        told = body.namer.fresh(f"{node.name}_centre_told")
        lines.append(fragment("call", [told], "unbound", [centres[1], "TOLD"]))
        joined = body.state_names(node, "_all")
        function = function_name(reduction_of(node).about[2])
        lines.append(fragment("call", joined, function, [told, *parts, "N"]))
    else:
        joined = merge_all(body, node, parts, "shares", lines)
    lines += [unbound(state, "TILE") for state in joined]
    body.finish(node, joined, "N", lines)


def _join_exps(
    body: ClusterBody, exps: tuple[Node, ...], parts: list[str], lines: list[str]
) -> None:
    """Both of the row that is stored."""
    joined = [name for node in exps for name in body.state_names(node, "_all")]
    lines.append(title(exps[1]))
    lines.append(fragment("call", joined, "join_exps", [*parts, "shares"]))
    lines += [unbound(state, "TILE") for state in joined]
    for node, state in zip(exps, joined, strict=True):
        body.finish(node, [state], "N", lines)


def cluster_functions(text: str) -> list[str]:
    """The functions that such kernels of a file share: those that `text` calls."""
    found = [expanded(_FUNCTIONS, "functions")]
    return [*found, expanded(_FUNCTIONS, "exps")] if "join_exps(" in text else found
