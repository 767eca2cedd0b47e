"""One function per skeleton: fill its slots from a kernel plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fusedsl.codegen.body import Body
from fusedsl.codegen.helpers import function_name, title
from fusedsl.codegen.passes import looped
from fusedsl.codegen.resident import resident
from fusedsl.codegen.shared import SHARED_CONFIG, shared
from fusedsl.codegen.source import COMPILE_TIME_ROLES, Arg
from fusedsl.codegen.statistics import emit_columns
from fusedsl.codegen.templates import constant, fragment, main_loop, render
from fusedsl.codegen.values import Var
from fusedsl.fuse import KernelPlan, Plan, anchor_operands
from fusedsl.ir import Contracts, Dim, Kind, Layout, Node
from fusedsl.schedule import is_resident, is_shared

#: Where a long list of parameters is broken.
COLUMNS = 100

_CONFIG = ("BLOCK_M", "BLOCK_N")
_GEMM_CONFIG = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "SIDES", "PRECISION")

#: How a kernel takes its rows: which program stands in this one's place, and which tile in the
#: place of the next.
_FORWARDS = {"backwards": False, "program": "tl.program_id(0)", "place": "tile"}
_BACKWARDS = {
    "backwards": True,
    "program": "(tl.num_programs(0) - 1 - tl.program_id(0))",
    "place": "place",
}

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
        lines = resident(kernel, body)
        return finish(kernel, body, "row_reduction/resident.py.jinja", _CONFIG, body=lines)
    if is_shared(kernel):
        config = (*_CONFIG, *SHARED_CONFIG)
        slots = shared(kernel, body)
        return finish(kernel, body, "row_reduction/shared.py.jinja", config, **slots)
    slots = looped(kernel, body)
    return finish(kernel, body, "row_reduction/looped.py.jinja", _CONFIG, **slots)


def finish(
    kernel: KernelPlan, emission: Body, template: str, config: tuple[str, ...], **slots: object
):
    """The kernel: its skeleton with the slots filled, and its arguments in order."""
    args = arguments(kernel, emission, config, str(slots))
    params = declared(args)
    doc = f'"""{kernel.name}: {", ".join(kernel.blocks)}."""'
    params = wrapped(params, len(f"def {kernel.name}():"))
    rows = _BACKWARDS if kernel.backwards else _FORWARDS
    rendered = render(template, name=kernel.name, params=params, doc=doc, N="N", **rows, **slots)
    return Emitted(rendered, args)


def arguments(
    kernel: KernelPlan, emission: Body, config: tuple[str, ...], text: str
) -> tuple[Arg, ...]:
    """The arguments of a kernel whose slots hold `text`, in order."""
    args = [*emission.args.values(), Arg("M", "rows"), Arg("N", "dim", str(kernel.cols))]
    if kernel.anchor is not None:
        operand = anchor_operands(kernel.anchor)[0]
        args.append(Arg("K", "dim", str(plan_cols(emission, operand))))
    args += [Arg(name, "config") for name in config]
    if "FAST=FAST" in text:
        args.append(Arg("FAST", "config"))
    return tuple(args)


def declared(args: Iterable[Arg]) -> list[str]:
    """Arguments as parameters."""
    return [f"{a.name}: tl.constexpr" if a.role in COMPILE_TIME_ROLES else a.name for a in args]


def wrapped(params: list[str], taken: int) -> list[str]:
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


# pointwise -------------------------------------------------------------------------------------
def _pointwise(kernel: KernelPlan, body: Body) -> Emitted:
    lines: list[str] = []
    for node in kernel.steps:
        body.emit(node, lines)
    return finish(kernel, body, "pointwise/pointwise.py.jinja", _CONFIG, body=lines)


# projections -----------------------------------------------------------------------------------
def _gemm(plan: Plan, kernel: KernelPlan, tma: bool, tiles: bool, keep_roundings: bool) -> Emitted:
    body = Body(plan, kernel, tiles, keep_roundings, "WIDTH")
    anchor = kernel.anchor
    assert anchor is not None
    slots = operands(body, kernel, tma)
    stream, rest = streamed(body, kernel)
    columns, side = epilogue(body, kernel, rest)
    return finish(
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


def operands(body: Body, kernel: KernelPlan, tma: bool) -> dict[str, object]:
    """The slots of the main loop, and its arguments."""
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


def epilogue(
    body: Body, kernel: KernelPlan, nodes: list[Node], rows: list[str] | None = None
) -> tuple[list[str], list[str]]:
    """Lines of the epilogue: what is the same for all columns, and what a piece of them takes; into
    `rows`, if it is given, go the loads of row vectors."""
    columns: list[str] = []
    side: list[str] = []
    _start_side(body, kernel, side)
    nodes = emit_columns(body, nodes, columns)
    body.load_columns(nodes, columns)
    if rows is not None:
        body.load_rows(nodes, rows)
    for node in nodes:
        body.emit(node, side)
    return columns, side


def _start_side(body: Body, kernel: KernelPlan, side: list[str]) -> None:
    anchor = kernel.anchor
    assert anchor is not None
    if kernel.paired:
        return
    name = body.namer.fresh(anchor.name)
    side.append(title(anchor))
    body.start(name, "part", anchor, side)
    body.values[anchor.name] = Var(name, Layout.TILE)
    if anchor.name in kernel.writes:
        body.store(anchor.name, side)


def streamed(body: Body, kernel: KernelPlan) -> tuple[dict[str, object], list[Node]]:
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
            before.append(fragment("state", name, constant(identity), "STREAM_M"))
        inside.append(title(node))
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
