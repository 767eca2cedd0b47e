"""One function per skeleton: fill its slots from a kernel plan."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fusedsl.codegen.body import Body, Var, _constant
from fusedsl.codegen.helpers import function_name
from fusedsl.codegen.source import COMPILE_TIME_ROLES, Arg
from fusedsl.codegen.templates import fragment, main_loop, render
from fusedsl.fuse import KernelPlan, Plan, anchor_operands, is_reduction
from fusedsl.ir import Contracts, Dim, Kind, Layout, Node
from fusedsl.schedule import RESIDENT_COLUMNS, row_segments

#: Where a long list of parameters is broken.
COLUMNS = 100

_CONFIG = ("BLOCK_M", "BLOCK_N")
_GEMM_CONFIG = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "SIDES", "PRECISION")

#: Tile in which a projection kernel reads the rows it takes a statistic of.
STREAM_ROWS, STREAM_COLUMNS = 16, 512


@dataclass(frozen=True)
class Emitted:
    """Text and arguments of one kernel."""

    text: str
    args: tuple[Arg, ...]


def emit_kernel(
    plan: Plan, kernel: KernelPlan, *, tma: bool, tiles: bool, keep_roundings: bool
) -> Emitted:
    """Emit one kernel plan. `tma`: projections stream their operands through tensor descriptors;
    `tiles`: their epilogues move tiles through descriptors too."""
    if kernel.kind is Kind.GEMM:
        return _gemm(plan, kernel, tma, tiles, keep_roundings)
    body = Body(plan, kernel, False, keep_roundings, "BLOCK_N")
    if kernel.kind is Kind.POINTWISE:
        return _pointwise(kernel, body)
    if is_resident(kernel):
        return _resident(kernel, body)
    return _looped(kernel, body)


def is_resident(kernel: KernelPlan) -> bool:
    """Whether a row fits in registers as a whole."""
    return kernel.cols.symbol is None and kernel.cols.factor <= RESIDENT_COLUMNS


def _finish(
    kernel: KernelPlan, emission: Body, template: str, config: tuple[str, ...], **slots: object
):
    args = [*emission.args.values(), Arg("M", "rows"), Arg("N", "dim", str(kernel.cols))]
    if kernel.anchor is not None:
        operand = anchor_operands(kernel.anchor)[0]
        args.append(Arg("K", "dim", str(plan_cols(emission, operand))))
    args += [Arg(name, "config") for name in config]
    text = str(slots)
    if "FAST=FAST" in text:
        args.append(Arg("FAST", "config"))
    params = [f"{a.name}: tl.constexpr" if a.role in COMPILE_TIME_ROLES else a.name for a in args]
    doc = f'"""{kernel.name}: {", ".join(kernel.blocks)}."""'
    params = _wrapped(params, len(f"def {kernel.name}():"))
    rendered = render(template, name=kernel.name, params=params, doc=doc, N="N", **slots)
    return Emitted(rendered, tuple(args))


def _wrapped(params: list[str], taken: int) -> list[str]:
    """The parameters, over several lines if `taken` leaves too few columns for them."""
    if len(", ".join(params)) + taken <= COLUMNS:
        return params
    lines: list[str] = [""]
    for param in params:
        if lines[-1] and len(lines[-1]) + len(param) + 6 > COLUMNS:
            lines.append("")
        lines[-1] += f" {param}," if lines[-1] else f"{param},"
    return ["".join(f"\n    {line}" for line in lines) + "\n"]


def plan_cols(body: Body, value: str) -> Dim:
    """Columns of a value."""
    return body.type_of(value).cols


# pointwise and rows ----------------------------------------------------------------------------
def _pointwise(kernel: KernelPlan, body: Body) -> Emitted:
    lines: list[str] = []
    for node in kernel.steps:
        body.emit(node, lines)
    return _finish(kernel, body, "pointwise/pointwise.py.jinja", _CONFIG, body=lines)


def _resident(kernel: KernelPlan, body: Body) -> Emitted:
    """The whole row in registers, in segments that are powers of two and cover it closely."""
    lines: list[str] = []
    body.load_indices(kernel.steps, lines)
    rows = _Segments(body, row_segments(kernel.cols.factor))
    remaining = list(kernel.steps)
    while remaining:
        ready = [n for n in remaining if not is_reduction(n) and _depends_on_none(n, remaining)]
        rest = _emit_columns(body, ready, lines)
        rows.emit(rest, lines)
        remaining = [n for n in remaining if n not in ready]
        statistics = [n for n in remaining if is_reduction(n) and _depends_on_none(n, remaining)]
        rows.reduce(statistics, lines)
        remaining = [n for n in remaining if n not in statistics]
    return _finish(kernel, body, "row_reduction/resident.py.jinja", _CONFIG, body=lines)


@dataclass
class _Segments:
    """The pieces of a row that is kept in registers; each has variables of its own."""

    body: Body
    pieces: tuple[tuple[int, int], ...]
    values: dict[int, dict[str, Var]] = field(default_factory=dict[int, dict[str, Var]])
    opened: int = -1

    def open(self, start: int, width: int, lines: list[str]) -> None:
        """Make a segment the one that lines are about."""
        alone = len(self.pieces) == 1
        self.body.width = "BLOCK_N" if alone else str(width)
        self.body.values = {**_per_row(self.body), **self.values.get(start, {})}
        if self.opened != start:
            text = fragment("segment", start, self.body.width, "N")
            lines += text.split("\n")
        self.opened = start

    def close(self, start: int) -> None:
        """Keep the segment's variables."""
        shared = _per_row(self.body)
        self.values[start] = {k: v for k, v in self.body.values.items() if k not in shared}
        self.body.values = shared

    def emit(self, nodes: list[Node], lines: list[str]) -> None:
        """Emit element-by-element nodes in every segment."""
        for start, width in self.pieces if nodes else ():
            self.open(start, width, lines)
            for node in nodes:
                self.body.emit(node, lines)
            self.close(start)

    def reduce(self, nodes: list[Node], lines: list[str]) -> None:
        """Emit statistics over all segments."""
        running: dict[str, list[str]] = {}
        for start, width in self.pieces if nodes else ():
            self.open(start, width, lines)
            for node in nodes:
                self._chunk(node, start, width, running, lines)
            self.close(start)
        for node in nodes:
            self.body.finish(node, running[node.name], "N", lines)

    def _chunk(
        self, node: Node, start: int, width: int, running: dict[str, list[str]], lines: list[str]
    ) -> None:
        lines.append(f"# {node.block.name}: {node.origin or node.name}")
        last = self.pieces[-1][0] == start
        count = f"N - {start}" if last and start else "N" if last else str(width)
        states = self.body.chunk(node, node.inputs[0], count, lines)
        if node.name not in running:
            running[node.name] = states
            return
        assert node.block.reduction is not None
        merge = function_name(node.block.reduction.merge)
        arguments = [str(start), *running[node.name], count, *states]
        running[node.name] = self.body.state_names(node, "_all")
        lines.append(fragment("call", running[node.name], merge, arguments))


def _looped(kernel: KernelPlan, body: Body) -> Emitted:
    """One pass over the row per level of dependent statistics, and one that stores tiles."""
    passes: list[dict[str, list[str]]] = []
    opening: list[str] = []
    remaining = list(kernel.steps)
    body.load_indices(remaining, opening)
    remaining = _emit_columns(body, remaining, opening)
    body.keep = "evict_last"  # the row comes by again
    while any(is_reduction(n) for n in remaining):
        ready = [n for n in remaining if is_reduction(n) and _depends_on_none(n, remaining)]
        passes.append(_statistics_pass(body, kernel, ready))
        remaining = [n for n in remaining if n not in ready]
        remaining = _emit_columns(body, remaining, passes[-1]["after"])
    inside: list[str] = []
    body.values = _per_row(body)
    body.keep = "evict_first"
    for node in remaining:
        body.emit(node, inside)
    passes.append({"before": [], "inside": inside, "after": []})
    passes[0]["before"] = opening + passes[0]["before"]
    return _finish(kernel, body, "row_reduction/looped.py.jinja", _CONFIG, passes=passes)


def _emit_columns(body: Body, nodes: list[Node], lines: list[str]) -> list[Node]:
    """Emit nodes that need columns alone; the rest is returned."""
    rest: list[Node] = []
    for node in nodes:
        if body.column_only(node):
            body.emit(node, lines)
        else:
            rest.append(node)
    return rest


def _depends_on_none(node: Node, nodes: list[Node]) -> bool:
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


def _statistics_pass(body: Body, kernel: KernelPlan, ready: list[Node]) -> dict[str, list[str]]:
    before: list[str] = []
    inside: list[str] = []
    after: list[str] = []
    outer = _per_row(body)
    body.values = dict(outer)
    for node in ready:
        _recompute(body, kernel, node.inputs[0], inside)
        assert node.block.reduction is not None
        running = body.state_names(node, "_all")
        for name, identity in zip(running, node.block.reduction.identity, strict=True):
            before.append(fragment("state", name, _constant(identity), "BLOCK_M"))
        inside.append(f"# {node.block.name}: {node.origin or node.name}")
        states = body.chunk(node, node.inputs[0], "min(BLOCK_N, N - start)", inside)
        merge = function_name(node.block.reduction.merge)
        arguments = ["start", *running, "min(BLOCK_N, N - start)", *states]
        inside.append(fragment("call", running, merge, arguments))
        after.append(f"# {node.block.name}: {node.origin or node.name}")
        made = body.values
        body.values = dict(outer)
        body.finish(node, running, "N", after)
        outer = body.values
        body.values = {**made, **outer}
    body.values = dict(outer)
    return {"before": before, "inside": inside, "after": after}


def _per_row(body: Body) -> dict[str, Var]:
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


# projections -----------------------------------------------------------------------------------
def _gemm(plan: Plan, kernel: KernelPlan, tma: bool, tiles: bool, keep_roundings: bool) -> Emitted:
    body = Body(plan, kernel, tiles, keep_roundings, "WIDTH")
    anchor = kernel.anchor
    assert anchor is not None
    slots = _operands(body, kernel, tma)
    stream, rest = _streamed(body, kernel)
    columns: list[str] = []
    side: list[str] = []
    _start_side(body, kernel, side)
    rest = _emit_columns(body, rest, columns)
    body.load_columns(rest, columns)
    for node in rest:
        body.emit(node, side)
    return _finish(
        kernel,
        body,
        "gemm/gemm.py.jinja",
        _GEMM_CONFIG,
        K="K",
        tma=tma,
        paired=kernel.paired,
        tile_n="(BLOCK_N // 2)" if kernel.paired else "BLOCK_N",
        stream=stream,
        column_lines=columns,
        side_lines=side,
        **slots,
    )


def _operands(body: Body, kernel: KernelPlan, tma: bool) -> dict[str, object]:
    anchor = kernel.anchor
    assert anchor is not None
    x, w = anchor_operands(anchor)
    k_last = anchor.block.laws_of(Contracts)[0].k_axis == 1
    paired = kernel.paired
    if not tma:
        body.args["a_ptr"] = Arg("a_ptr", "pointer", x)
        body.args["a_stride"] = Arg("a_stride", "stride", x)
        body.args["b_ptr"] = Arg("b_ptr", "pointer", w)
        body.args["b_stride"] = Arg("b_stride", "stride", w)
        tile_n = "(BLOCK_N // 2)" if paired else "BLOCK_N"
        setup = main_loop("pointer_setup", paired, k_last, "N", tile_n)
        return {"pointer_setup": setup, "main_loop": main_loop("pointer", k_last, "K")}
    body.args["a_desc"] = Arg("a_desc", "descriptor", x, ("BLOCK_M", "BLOCK_K"))
    if paired:
        block = (2, "HALF_N", "BLOCK_K") if k_last else ("BLOCK_K", 2, "HALF_N")
        view = "stacked_rows" if k_last else "stacked_cols"
    else:
        block = ("BLOCK_N", "BLOCK_K") if k_last else ("BLOCK_K", "BLOCK_N")
        view = ""
    body.args["b_desc"] = Arg("b_desc", "descriptor", w, block, view)
    return {"pointer_setup": "", "main_loop": main_loop("tma", paired, k_last)}


def _start_side(body: Body, kernel: KernelPlan, side: list[str]) -> None:
    anchor = kernel.anchor
    assert anchor is not None
    if kernel.paired:
        return
    name = body.namer.fresh(anchor.name)
    side.append(f"# {anchor.block.name}: {anchor.origin or anchor.name}")
    body.start(name, "part", anchor, side)
    body.values[anchor.name] = Var(name, Layout.TILE)
    if anchor.name in kernel.writes:
        body.store(anchor.name, side)


def _streamed(body: Body, kernel: KernelPlan) -> tuple[dict[str, object], list[Node]]:
    """The phase that takes statistics of the streamed operand, and the steps left over."""
    if not kernel.streamed:
        return {}, list(kernel.steps)
    before: list[str] = []
    inside: list[str] = []
    after: list[str] = []
    tiles, body.descriptors = body.descriptors, False
    running: dict[str, list[str]] = {}
    for node in kernel.streamed:
        reduction = node.block.reduction
        assert reduction is not None
        running[node.name] = body.state_names(node, "_all")
        for name, identity in zip(running[node.name], reduction.identity, strict=True):
            before.append(fragment("state", name, _constant(identity), "STREAM_M"))
        inside.append(f"# {node.block.name}: {node.origin or node.name}")
        count = "min(STREAM_K, K - start)"
        states = body.chunk(node, node.inputs[0], count, inside)
        arguments = ["start", *running[node.name], count, *states]
        merge = function_name(reduction.merge)
        inside.append(fragment("call", running[node.name], merge, arguments))
    body.values = {}
    for node in kernel.streamed:
        body.finish(node, running[node.name], "K", after)
    known = {r.name for n in kernel.streamed for r in n.results}
    rest: list[Node] = []
    for node in kernel.steps:
        if any(n in known for n in node.inputs):
            known |= {r.name for r in node.results}
            body.emit(node, after)
        else:
            rest.append(node)
    body.values = {}
    body.descriptors = tiles
    slots: dict[str, object] = {"before": before, "inside": inside, "after": after}
    return {**slots, "rows": STREAM_ROWS, "columns": STREAM_COLUMNS}, rest
