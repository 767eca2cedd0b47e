"""Row kernels whose rows lie in rings of shared memory: `row_reduction/ring.py.jinja` filled from a
kernel plan. Gluon, as `specialised`.

PARTS programs share a row, as in `shared`, but more rows are under way: in turn t a program begins
to load its part of row t + LOADS into its ring, reduces that of row t and tells its states, and
stores that of row t - LAG, whose states all parts have told by then. A ring of LOADS + 1 + LAG
parts holds them all: the part loaded in turn t takes the place of row t - LAG - 1, stored a turn
ago. Each thread loads the columns that it reads itself, so that no other has to have ended that
turn. Row t of a group is the one it takes in turn t; backwards the first is its last one.

States are words, as in `blocks/row_reduction/sharing.py`; the mark of row t is t + 1, so that zeros
are of no row. A program tells row t after it has ended turn t - 1, so has seen the words of row
t - 1 - LAG of all parts. Each of these was told in turn t - 1 - LAG of its program, which had ended
turn t - 2 - LAG in all warps (the barrier of the reduction), so had seen all words of row
t - 2 - 2 LAG, and has no use for them any more. With 2 LAG + 2 slots the word of row t is put over
that of row t - 2 - 2 LAG, which nobody waits for then; with one slot fewer it might be lost. What
is asked for in turn t, of row t - LAG, is of that row or an earlier one: who tells row t + LAG + 2,
to the same slot, has seen the words of row t + 1 of all parts, so all have ended turn t.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fusedsl.codegen.body import Body
from fusedsl.codegen.centres import HEAD_COLUMNS, at_head, centre_of_columns, unbound
from fusedsl.codegen.helpers import function_name, title
from fusedsl.codegen.kernels import Emitted, finish
from fusedsl.codegen.source import Arg, words_of
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
from fusedsl.codegen.values import Load, Var
from fusedsl.fuse import KernelPlan, Plan, is_pick, is_reduction
from fusedsl.ir import Gathers, HalvesOf, Kind, Layout, Node, TensorType

_CONFIG = ("BLOCK_N", "PARTS", "READ", "STAGES")

_FUNCTIONS = "row_reduction/ring_functions.jinja"

#: Bytes of row vectors, for each column, that stay in registers from row to row.
_KEPT_BYTES = 4

#: What block functions may take of `tl` here.
_LANGUAGE = LANGUAGE | {"div_rn"}

#: The most tiles that are loaded, and that are stored.
_TILES = 2

#: Turns by the row at hand: the one that is reduced, and the one that is stored.
_TURNS = {"next": "turn", "part": "late"}


def can_take_ring(plan: Plan, kernel: KernelPlan) -> bool:
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


def emit_ring(plan: Plan, kernel: KernelPlan, *, keep_roundings: bool) -> Emitted:
    """Emit a row kernel whose rows lie in rings."""
    body = _RingBody(plan, kernel, False, keep_roundings, "BLOCK_N")
    body.args["words_ptr"] = Arg("words_ptr", "pointer", words_of(kernel.name))
    for tile in plan.tiles_read(kernel):
        ring = body.namer.fresh(f"{tile}_ring")
        body.rings[tile] = (ring, body.pointer(tile), body.stride(tile))
    statistics = [node for node in kernel.steps if is_reduction(node)]
    find: list[str] = []
    body.held = "next"
    exps = _exps_of(kernel)
    if exps:
        states = _take_exps(body, kernel, exps, find)
    else:
        states = _take_sums(body, kernel, statistics, find)
    body.values, body.held = {}, "part"
    after: list[str] = []
    rest = emit_columns(body, [n for n in kernel.steps if n not in statistics], after)
    merge: list[str] = []
    told = [[body.namer.fresh(f"{name}_{s}") for s in ("words", "parts")] for name in states]
    parts = [name for _, name in told]
    if exps:
        _join_exps(body, exps, parts, merge)
        statistics = []
    for node in statistics:
        count = len(reduction_of(node).identity)
        _join(body, kernel, node, parts[:count], merge)
        parts = parts[count:]
    final: list[str] = []
    for node in emit_columns(body, rest, final):
        body.emit(node, final)
    slots: dict[str, object] = {
        "rings": list(body.rings.values()),
        "states": told,
        "find": find,
        "opening": after,
        "merge": merge,
        "final": final,
        "kept": [fragment("load_kept", *kept) for kept in body.kept.values()],
        "heads": list(body.heads.values()),
        "columns": "rows64" in f"{find}{after}{merge}{final}",
    }
    return finish(kernel, body, "row_reduction/ring.py.jinja", _CONFIG, **slots)


def _centre(body: _RingBody, kernel: KernelPlan, node: Node, lines: list[str]) -> str:
    """Name the mean of the first columns of the row at hand, of what a statistic is taken of."""
    name = body.namer.fresh(f"{node.name}_centre")
    lines += fragment("head_columns").split("\n")
    body.head = True
    with at_head(body):
        centre_of_columns(body, kernel, node, name, lines)
    body.head = False
    lines += fragment("part_columns").split("\n")
    return name


def _take_sums(
    body: _RingBody, kernel: KernelPlan, statistics: list[Node], lines: list[str]
) -> list[str]:
    """Sums over the part at hand, told to the other parts: two at a time share a barrier, as soon
    as lanes hold two."""
    about = [node for node in statistics if reduction_of(node).about]
    centres = {node.name: _centre(body, kernel, node, lines) for node in about}
    states: list[str] = []
    waiting: list[tuple[str, str]] = []
    for node in statistics:
        recompute(body, kernel, node.inputs[0], lines)
        lines.append(title(node))
        names = body.state_names(node, "_lanes")
        if node.name in centres:
            piece = body.rounded(node.inputs[0], lines)
            lines.append(unbound(centres[node.name], "TILE"))
            apart_of = reduction_of(node).about[1]
            take_apart(body, apart_of, piece, centres[node.name], names, lines)
        else:
            function = function_name(reduction_of(node).lift)
            piece = body.masked(node.inputs[0], lines)
            lines.append(fragment("call", names, function, [piece]))
        waiting += zip(body.state_names(node), names, strict=True)
        while len(waiting) > 1 or (waiting and node is statistics[-1]):
            _tell(waiting[:2], len(states), lines)
            states += [state for state, _ in waiting[:2]]
            waiting = waiting[2:]
    return states


def _tell(sums: list[tuple[str, str]], before: int, lines: list[str]) -> None:
    """Sum one or two states, (name, name of what the lanes hold), and tell them to the other parts;
    `before` were told of this row."""
    count = "two" if len(sums) == 2 else "one"
    states = [state for state, _ in sums]
    lines.append(fragment("call", states, f"sum_{count}", [lanes for _, lanes in sums]))
    first = f" + {before} * PARTS" if before else ""
    step = ", PARTS" if len(sums) == 2 else ""
    lines.append(f"tell_{count}(mine{first}, {', '.join(states)}, turn + 1{step})")


def _join(
    body: _RingBody, kernel: KernelPlan, node: Node, parts: list[str], lines: list[str]
) -> None:
    """The statistics of the row that is stored, from the states of its parts."""
    if reduction_of(node).about:
        centre = _centre(body, kernel, node, lines)
        lines += [title(node), unbound(centre, "TOLD")]
        joined = body.state_names(node, "_all")
        function = function_name(reduction_of(node).about[2])
        lines.append(fragment("call", joined, function, [centre, *parts, "N"]))
    else:
        lines.append(title(node))
        joined = merge_all(body, node, parts, "shares", lines)
    lines += [unbound(state, "TILE") for state in joined]
    body.finish(node, joined, "N", lines)


def _take_exps(
    body: _RingBody, kernel: KernelPlan, exps: tuple[Node, ...], lines: list[str]
) -> list[str]:
    """The largest value of the part at hand and the sum of exponentials about it, told."""
    largest, total = exps
    states = [*body.state_names(largest), *body.state_names(total)]
    recompute(body, kernel, largest.inputs[0], lines)
    lines.append(title(largest))
    piece = body.rounded(largest.inputs[0], lines)
    lines.append(fragment("call", states[:1], "largest", [piece, "col_live[None, :]"]))
    column = body.namer.fresh(largest.name)
    lines.append(fragment("call", [column], "finite", [states[0], "TILE"]))
    body.values[largest.name] = Var(column, Layout.COLUMN)
    recompute(body, kernel, total.inputs[0], lines)
    lines.append(title(total))
    lanes = body.state_names(total, "_lanes")
    piece = body.masked(total.inputs[0], lines)
    lines.append(fragment("call", lanes, function_name(reduction_of(total).lift), [piece]))
    lines.append(fragment("call", states[1:], "sum_one", lanes))
    lines.append(f"tell_two(mine, {', '.join(states)}, turn + 1, PARTS)")
    return states


def _join_exps(body: _RingBody, exps: tuple[Node, ...], parts: list[str], lines: list[str]) -> None:
    """Both of the row that is stored."""
    joined = [name for node in exps for name in body.state_names(node, "_all")]
    lines.append(title(exps[1]))
    lines.append(fragment("call", joined, "join_exps", [*parts, "shares"]))
    lines += [unbound(state, "TILE") for state in joined]
    for node, state in zip(exps, joined, strict=True):
        body.finish(node, [state], "N", lines)


def ring_functions(text: str) -> list[str]:
    """The functions that such kernels of a file share: those that `text` calls."""
    found = [expanded(_FUNCTIONS, "functions")]
    return [*found, expanded(_FUNCTIONS, "exps")] if "join_exps(" in text else found


@dataclass
class _RingBody(Body):
    """A `Body` of values [1, BLOCK_N] in the layout TILE.

    `held`: the row at hand, "next" where it is reduced and "part" where it is stored. `head`: its
    first columns are at hand. `rings`: ring, pointer and stride of each tile that is loaded.
    `kept`: name and pointer of each row vector that stays in registers.
    """

    head: bool = False
    rings: dict[str, tuple[str, str, str]] = field(default_factory=dict[str, tuple[str, str, str]])
    kept: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])

    def _load_line(
        self, value: str, name: str, layout: Layout, kind: TensorType, offset: str
    ) -> str:
        assert not offset
        if layout is Layout.TILE:
            if self.head:
                head = self._head(value)
                source = head.part if self.held == "part" else head.next
                return fragment("call", [name], "widen", [source])
            return fragment("load_tile_ring", name, self.rings[value][0], _TURNS[self.held])
        if layout is Layout.ROW and not self.head and self._is_kept(value, kind):
            return fragment("call", [name], "widen_here", [self.kept[value][0]])
        return super()._load_line(value, name, layout, kind, offset)

    def _head(self, value: str) -> Load:
        key = (value, "")
        if key not in self.heads:
            names = [self.namer.fresh(f"{value}_head_{s}") for s in ("ahead", "next", "part")]
            place = self.pointer(value), self.stride(value), ""
            self.heads[key] = Load(*place, names[0], names[1], names[2], self.width)
        return self.heads[key]

    def _is_kept(self, value: str, kind: TensorType) -> bool:
        """Whether a row vector stays in registers."""
        if value in self.kept:
            return True
        held = sum(self.type_of(name).dtype.bytes for name in self.kept)
        if held + kind.dtype.bytes > _KEPT_BYTES:
            return False
        self.kept[value] = self.namer.fresh(f"{value}_kept"), self.pointer(value)
        return True

    def _store_tile(self, value: str, var: Var, dtype: str, lines: list[str]) -> None:
        slots = var.name, self.pointer(value), self.stride(value), dtype
        lines.append(fragment("store_tile_ring", *slots))
