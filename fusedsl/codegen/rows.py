"""Row kernels: a row in registers as a whole, or in passes that several programs may share.

Where a row is taken in several pieces of one width, the statistics of its columns are merged lane
by lane, piece after piece, and once across the lanes at the end: every reduction across lanes is a
barrier.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fusedsl.codegen.body import Body, Var, constant
from fusedsl.codegen.helpers import function_name
from fusedsl.codegen.source import Arg, words_of
from fusedsl.codegen.templates import fragment
from fusedsl.fuse import KernelPlan, is_reduction
from fusedsl.ir import Layout, Node, Reduction
from fusedsl.schedule import CENTRED_COLUMNS, row_segments

#: Bytes of each column of row vectors that stay in registers beside a part.
_KEPT_BYTES = 4

#: What the kernels of shared rows are configured by, besides the tile.
SHARED_CONFIG = ("PARTS", "PADDED_PARTS", "WAIT")

#: Whether a program of a shared row reduces its part of the next one after it has stored the row at
#: hand, or before the last wait for the other parts of that. The loads of the next are issued ahead
#: of both: the store hides their latency, or their reduction that of the last wait.
STORE_FIRST = False


def resident(kernel: KernelPlan, body: Body) -> list[str]:
    """The whole row in registers, in segments of one width that cover it closely."""
    lines: list[str] = []
    body.load_indices(kernel.steps, lines)
    body.spread = _may_spread(kernel, body)
    rows = _Segments(body, kernel.cols.factor, *row_segments(kernel.cols.factor))
    remaining = list(kernel.steps)
    while remaining:
        ready = [n for n in remaining if not is_reduction(n) and depends_on_none(n, remaining)]
        rest = emit_columns(body, ready, lines)
        rows.emit(rest, lines)
        remaining = [n for n in remaining if n not in ready]
        statistics = _next_statistics(remaining)
        rows.reduce(statistics, lines)
        remaining = [n for n in remaining if n not in statistics]
    return lines


def _may_spread(kernel: KernelPlan, body: Body) -> bool:
    """Whether row vectors may lie as tiles do: none of them is stored."""
    return all(body.type_of(name).layout is not Layout.ROW for name in kernel.writes)


@dataclass
class _Segments:
    """The pieces of a row that is kept in registers; each has variables of its own."""

    body: Body
    columns: int
    count: int
    size: int
    values: dict[int, dict[str, Var]] = field(default_factory=dict[int, dict[str, Var]])
    opened: int = -1

    @property
    def width(self) -> str:
        """The width of a segment, in the source."""
        return "BLOCK_N" if self.count == 1 else str(self.size)

    def open(self, number: int, lines: list[str]) -> None:
        """Make a segment the one that lines are about."""
        self.body.width = self.width
        self.body.values = {**per_row(self.body), **self.values.get(number, {})}
        if self.opened != number:
            whole = (number + 1) * self.size <= self.columns
            text = fragment("segment", number * self.size, self.width, "N", whole)
            lines += text.split("\n")
        self.opened = number

    def close(self, number: int) -> None:
        """Keep the segment's variables."""
        shared = per_row(self.body)
        self.values[number] = {k: v for k, v in self.body.values.items() if k not in shared}
        self.body.values = shared

    def emit(self, nodes: list[Node], lines: list[str]) -> None:
        """Emit element-by-element nodes in every segment."""
        for number in range(self.count) if nodes else ():
            self.open(number, lines)
            for node in nodes:
                self.body.emit(node, lines)
            self.close(number)

    def reduce(self, nodes: list[Node], lines: list[str]) -> None:
        """Emit statistics over all segments."""
        states: dict[str, list[str]] = {}
        for node in nodes:
            lines.append(f"# {node.block.name}: {node.origin or node.name}")
            if _reduction(node).about:
                states[node.name] = self._about(node, lines)
            elif self.count == 1:
                self.open(0, lines)
                states[node.name] = self.body.chunk(node, node.inputs[0], "N", lines)
                self.close(0)
            else:
                states[node.name] = self._lane_by_lane(node, lines)
        for node in nodes:
            self.body.finish(node, states[node.name], "N", lines)

    def _lane_by_lane(self, node: Node, lines: list[str]) -> list[str]:
        running: list[str] = []
        for number in range(self.count):
            self.open(number, lines)
            if number == 0:
                running = self.body.lift(node, node.inputs[0], lines)
            else:
                merge_lanes(self.body, node, str(number), running, lines)
            self.close(number)
        held = self.body.namer.fresh("held")
        lines.append(fragment("segment_lanes", held, self.width, "N"))
        return _merge_all(self.body, node, running, held, lines)

    def _about(self, node: Node, lines: list[str]) -> list[str]:
        """A statistic about the mean, in two sweeps."""
        namer = self.body.namer
        centre_of, apart_of, about = (function_name(f) for f in _reduction(node).about)
        pieces: list[str] = []
        sums = namer.fresh(f"{node.name}_sums")
        for number in range(self.count):
            self.open(number, lines)
            pieces.append(self.body.masked(node.inputs[0], lines))
            add = fragment("add_to" if number else "alias", sums, pieces[-1])
            lines.append(add)
            self.close(number)
        centre = namer.fresh(f"{node.name}_centre")
        lines.append(fragment("call", [centre], centre_of, [sums, "N"]))
        totals: list[str] = []
        for number, piece in enumerate(pieces):
            self.open(number, lines)
            names = self.body.state_names(node, "_apart")
            lines.append(
                fragment(
                    "call", names, apart_of, [piece, "col_live[None, :]", f"{centre}[:, None]"]
                )
            )
            lines += [fragment("add_to", t, n) for t, n in zip(totals, names, strict=False)]
            totals = totals or names
            self.close(number)
        states = self.body.state_names(node)
        lines.append(fragment("call", states, about, [centre, *totals, "N"]))
        return states


def merge_lanes(body: Body, node: Node, before: str, running: list[str], lines: list[str]) -> None:
    """Merge the elements at hand into the states of their lanes; `before` is how many came."""
    reduction = _reduction(node)
    found = body.lift(node, node.inputs[0], lines)
    merged = body.state_names(node, "_next")
    arguments = [before, *running, "1", *found]
    lines.append(fragment("call", merged, function_name(reduction.merge), arguments))
    for state, name in zip(running, merged, strict=True):
        lines.append(fragment("keep_live", state, name))


def _merge_all(
    body: Body, node: Node, states: list[str], counts: str, lines: list[str]
) -> list[str]:
    """Merge the states of lanes, or of parts, into one state of the row."""
    merged = body.state_names(node, "_all")
    function = function_name(_reduction(node).merge_all)
    lines.append(fragment("call", merged, function, [*states, counts]))
    return merged


def _reduction(node: Node) -> Reduction:
    assert node.block.reduction is not None
    return node.block.reduction


# passes ----------------------------------------------------------------------------------------
def looped(kernel: KernelPlan, body: Body) -> dict[str, object]:
    """One pass over the row per level of dependent statistics, and one that stores tiles."""
    passes: list[dict[str, list[str]]] = []
    opening: list[str] = []
    body.load_indices(kernel.steps, opening)
    remaining = emit_columns(body, list(kernel.steps), opening)
    body.keep = "evict_last"  # the row comes by again
    while any(is_reduction(n) for n in remaining):
        ready = _next_statistics(remaining)
        centred = _is_wide(kernel) and all(_reduction(n).about for n in ready)
        taken = (_centred_pass if centred else lanes_pass)(body, kernel, ready)
        passes.append(taken)
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


def shared(kernel: KernelPlan, body: Body) -> dict[str, object]:
    """Rows in parts: what is taken of the next row's part, and what of the one that is kept.

    A round is a level of dependent statistics: the slots of its states, the lines that find those
    of this part (of the next row, in the first round), that merge all parts', and what follows.
    """
    body.args["words_ptr"] = Arg("words_ptr", "pointer", words_of(kernel.name))
    body.keep, body.spread = "evict_first", _may_spread(kernel, body)
    if body.spread and _row_bytes(kernel, body) <= _KEPT_BYTES:
        body.kept = {}
    remaining = list(kernel.steps)
    rounds = [_Round(_next_statistics(remaining))]
    body.held = "next"
    body.load_indices(rounds[0].nodes, rounds[0].find)
    for node in rounds[0].nodes:
        _recompute(body, kernel, node.inputs[0], rounds[0].find)
    rounds[0].reduce(body, 0)
    body.values, body.held = {}, "part"
    opening: list[str] = []
    body.load_indices(kernel.steps, opening)
    remaining = emit_columns(body, remaining, opening)
    while True:
        rounds[-1].join(body)
        remaining = [n for n in remaining if n not in rounds[-1].nodes]
        ready = [n for n in remaining if not is_reduction(n) and depends_on_none(n, remaining)]
        rest = emit_columns(body, ready, rounds[-1].after)
        for node in rest:
            body.emit(node, rounds[-1].after)
        remaining = [n for n in remaining if n not in ready]
        if not remaining:
            break
        rounds.append(_Round(_next_statistics(remaining)))
        rounds[-1].reduce(body, sum(len(made.slots) for made in rounds))
    loads = list(body.loads.values())
    vectors = (body.kept or {}).items()
    slots = {
        "keep": [
            *(fragment("load_row_kept", v, body.pointer(n), o) for (n, o), v in vectors),
            *(fragment("no_part", load.part, load.pointer) for load in loads),
        ],
        "load": [
            fragment("load_part", load.next, load.pointer, load.stride, load.offset)
            for load in loads
        ],
        "move": [fragment("alias", load.part, load.next) for load in loads],
    }
    states = sum(len(made.slots) for made in rounds)
    order = {"store_first": STORE_FIRST}
    return {**slots, **order, "opening": opening, "rounds": rounds, "states": states}


def _row_bytes(kernel: KernelPlan, body: Body) -> int:
    """Bytes of each column of the row vectors that a kernel reads."""
    read = {name for node in kernel.steps for name in node.inputs} - set(kernel.computed)
    kinds = [body.type_of(name) for name in read]
    return sum(kind.dtype.bytes for kind in kinds if kind.layout is Layout.ROW)


def _next_statistics(nodes: list[Node]) -> list[Node]:
    return [n for n in nodes if is_reduction(n) and depends_on_none(n, nodes)]


@dataclass
class _Round:
    """Statistics that parts of a row tell each other at a time."""

    nodes: list[Node]
    find: list[str] = field(default_factory=list[str])
    slots: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    merge: list[str] = field(default_factory=list[str])
    after: list[str] = field(default_factory=list[str])

    def reduce(self, body: Body, before: int) -> None:
        """The states of the part at hand; `before` is how many slots others have."""
        for node in self.nodes:
            self.find.append(f"# {node.block.name}: {node.origin or node.name}")
            names = body.chunk(node, node.inputs[0], "held", self.find)
            self.slots += [(name, before + i) for i, name in enumerate(names, len(self.slots))]

    def join(self, body: Body) -> None:
        """The statistics of the row from the states of its parts."""
        names = [name for name, _ in self.slots]
        for node in self.nodes:
            count = len(_reduction(node).identity)
            parts, names = [f"{name}_parts" for name in names[:count]], names[count:]
            self.merge.append(f"# {node.block.name}: {node.origin or node.name}")
            states = _merge_all(body, node, parts, "shares", self.merge)
            body.finish(node, states, "N", self.merge)


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
        _recompute(body, kernel, node.inputs[0], made["inside"])
        running[node.name] = body.state_names(node, "_lanes")
        for name, identity in zip(running[node.name], _reduction(node).identity, strict=True):
            slots = (name, constant(identity), "BLOCK_M", width)
            made["before"].append(fragment("lanes", *slots))
        made["inside"].append(f"# {node.block.name}: {node.origin or node.name}")
        merge_lanes(body, node, f"start // {width}", running[node.name], made["inside"])
    body.values = dict(outer)
    for node in ready:
        states = _merge_all(body, node, running[node.name], held, made["reduce"])
        made["after"].append(f"# {node.block.name}: {node.origin or node.name}")
        body.finish(node, states, total, made["after"])
    return made


def _centred_pass(body: Body, kernel: KernelPlan, ready: list[Node]) -> dict[str, list[str]]:
    """A pass that takes statistics about a mean, as sums of what lies apart from that of the first
    columns: fewer registers for each lane than a mean of its own."""
    made = _pass(begin=["BLOCK_N"])
    outer = per_row(body)
    body.values = dict(outer)
    running = {node.name: body.state_names(node, "_lanes") for node in ready}
    first = [_first_piece(body, kernel, n, running[n.name], made["before"]) for n in ready]
    body.values = dict(outer)
    for node, centre in zip(ready, first, strict=True):
        _recompute(body, kernel, node.inputs[0], made["inside"])
        made["inside"].append(f"# {node.block.name}: {node.origin or node.name}")
        piece = body.rounded(node.inputs[0], made["inside"])
        names = body.state_names(node, "_apart")
        apart_of, about = (function_name(f) for f in _reduction(node).about[1:])
        arguments = [piece, "col_live[None, :]", f"{centre}[:, None]"]
        made["inside"].append(fragment("call", names, apart_of, arguments))
        lanes = running[node.name]
        made["inside"] += [fragment("add_to", a, b) for a, b in zip(lanes, names, strict=True)]
        states = body.state_names(node)
        made["reduce"].append(fragment("call", states, about, [centre, *lanes, "N"]))
        running[node.name] = states
    body.values = dict(outer)
    for node in ready:
        made["after"].append(f"# {node.block.name}: {node.origin or node.name}")
        body.finish(node, running[node.name], "N", made["after"])
    return made


def _first_piece(
    body: Body, kernel: KernelPlan, node: Node, running: list[str], lines: list[str]
) -> str:
    """The mean of the first columns of each row, and what lies apart from it in their lanes."""
    lines += fragment("segment", 0, "BLOCK_N", "N", False).split("\n")
    lines.append(fragment("whole_tiles", "BLOCK_N"))
    _recompute(body, kernel, node.inputs[0], lines)
    piece = body.masked(node.inputs[0], lines)
    centre_of, apart_of = (function_name(f) for f in _reduction(node).about[:2])
    centre = body.namer.fresh(f"{node.name}_centre")
    lines.append(fragment("call", [centre], centre_of, [piece, "min(BLOCK_N, N)"]))
    arguments = [piece, "col_live[None, :]", f"{centre}[:, None]"]
    lines.append(fragment("call", running, apart_of, arguments))
    return centre


def statistics_pass(
    body: Body, kernel: KernelPlan, ready: list[Node], width: str = "BLOCK_N", total: str = "N"
) -> dict[str, list[str]]:
    """A pass over rows of `total` columns, `width` at a time, that takes statistics."""
    count = f"min({width}, {total} - start)"
    before: list[str] = []
    inside: list[str] = []
    after: list[str] = []
    outer = per_row(body)
    body.values = dict(outer)
    for node in ready:
        _recompute(body, kernel, node.inputs[0], inside)
        assert node.block.reduction is not None
        running = body.state_names(node, "_all")
        for name, identity in zip(running, node.block.reduction.identity, strict=True):
            before.append(fragment("state", name, constant(identity), "BLOCK_M"))
        inside.append(f"# {node.block.name}: {node.origin or node.name}")
        states = body.chunk(node, node.inputs[0], count, inside)
        merge = function_name(node.block.reduction.merge)
        arguments = ["start", *running, count, *states]
        inside.append(fragment("call", running, merge, arguments))
        after.append(f"# {node.block.name}: {node.origin or node.name}")
        made = body.values
        body.values = dict(outer)
        body.finish(node, running, total, after)
        outer = body.values
        body.values = {**made, **outer}
    body.values = dict(outer)
    return {"before": before, "inside": inside, "after": after}


def emit_columns(body: Body, nodes: list[Node], lines: list[str]) -> list[Node]:
    """Emit nodes that need columns alone; the rest is returned."""
    rest: list[Node] = []
    for node in nodes:
        if body.column_only(node):
            body.emit(node, lines)
        else:
            rest.append(node)
    return rest


def depends_on_none(node: Node, nodes: list[Node]) -> bool:
    """Whether no other pending statistic is needed first."""
    pending = {r.name: n for n in nodes for r in n.results}
    queue = list(node.inputs)
    while queue:
        before = pending.get(queue.pop())
        if before is None:
            continue
        if is_reduction(before):
            return False
        queue += before.inputs
    return True


def per_row(body: Body) -> dict[str, Var]:
    """Column vectors and scalars: they outlive a pass over the columns."""
    return {k: v for k, v in body.values.items() if v.layout in (Layout.COLUMN, Layout.SCALAR)}


def _recompute(body: Body, kernel: KernelPlan, value: str, lines: list[str]) -> None:
    """Emit, in this pass, the nodes that `value` needs; nothing is stored here."""
    producers = {r.name: n for n in kernel.steps for r in n.results}
    order: list[Node] = []

    def visit(name: str) -> None:
        node = producers.get(name)
        if name in body.values or node is None or node in order:
            return
        for operand in node.inputs:
            visit(operand)
        order.append(node)

    visit(value)
    kept, body.kernel = body.kernel, replace(kernel, writes=())
    for node in order:
        body.emit(node, lines)
    body.kernel = kept
