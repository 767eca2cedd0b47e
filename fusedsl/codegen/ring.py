"""The kernel of a projection of few rows on Hopper: `gemm/ring.py.jinja` filled from a kernel plan.
Gluon, as `specialised`."""

from __future__ import annotations

import textwrap

from fusedsl.codegen.body import Body
from fusedsl.codegen.few_rows import partial_sums
from fusedsl.codegen.kernels import COLUMNS, Emitted, arguments, declared, epilogue, wrapped
from fusedsl.codegen.source import Arg
from fusedsl.codegen.specialised import is_plain, speaks, statistics, streams_16_bits
from fusedsl.codegen.templates import expanded, render
from fusedsl.fuse import KernelPlan, Plan, anchor_operands, is_reduction
from fusedsl.ir import Layout

_CONFIG = ("BLOCK_M", "BLOCK_K", "STAGES", "SPLIT", "AHEAD", "EARLY", "PDL")

#: What the multiplying warps do not take.
_LOADED = ("x_desc", "w_desc", "w_ptr", "w_stride", "AHEAD", "EARLY")

#: What lies between the loading and the multiplying warps.
_RINGS = ("x_stages", "w_stages", "full", "empty")


def can_ring(plan: Plan, kernel: KernelPlan) -> bool:
    """Whether a projection of few rows can be made so: 16-bit operands, weights [N, K] that are
    bound or given, an epilogue of elementwise steps, and no statistic of what it streams, or one
    that is a sum over the row."""
    if not kernel.few_rows or not streams_16_bits(plan, kernel):
        return False
    assert kernel.anchor is not None
    x, w = anchor_operands(kernel.anchor)
    taken = [n for n in kernel.recomputed if is_reduction(n)]
    sums = [n.block.reduction is not None and n.block.reduction.adds for n in taken]
    if len(taken) > 1 or not all(sums) or any(tuple(n.inputs) != (x,) for n in taken):
        return False
    if plan.writer(w) is not None or kernel.states_left or kernel.states_merged:
        return False
    if any(plan.type_of(name).layout is not Layout.TILE for name in kernel.writes):
        return False
    return all(is_plain(node, kernel) for node in kernel.steps) and speaks(kernel)


def emit_ring(plan: Plan, kernel: KernelPlan, *, keep_roundings: bool) -> Emitted:
    """Emit a projection of few rows: the functions of its warps, and the kernel."""
    assert kernel.anchor is not None
    x, w = anchor_operands(kernel.anchor)
    body = Body(plan, kernel, False, keep_roundings, "WIDTH")
    body.args["x_desc"] = Arg("x_desc", "descriptor", x, ("BLOCK_M", "BLOCK_K"))
    body.args["w_desc"] = Arg("w_desc", "descriptor", w, (64, "BLOCK_K"))
    body.args["w_ptr"] = Arg("w_ptr", "pointer", w)
    body.args["w_stride"] = Arg("w_stride", "stride", w)
    slots = partial_sums(plan, body, kernel)
    ahead: list[str] = []
    for name in plan.tiles_read(kernel):
        if not _in_halves(kernel, name):
            body.load(name, ahead)
    taking, recomputed = statistics(body, kernel)
    columns, side = epilogue(body, kernel, list(kernel.steps))
    slots |= taking | {"ahead_lines": ahead, "column_lines": recomputed + columns}
    slots["side_lines"] = side
    args = arguments(kernel, body, _CONFIG, str(slots))
    inner = [arg for arg in args if arg.name not in _LOADED]
    names = [arg.name for arg in inner]
    text = render(
        "gemm/ring.py.jinja",
        name=kernel.name,
        doc=f'"""{kernel.name}: {", ".join(kernel.blocks)}."""',
        params=wrapped([*_RINGS, *declared(inner)], len(f"def {kernel.name}_multiply():")),
        kernel_params=wrapped(declared(args), len(f"def {kernel.name}():")),
        passed=textwrap.wrap(", ".join([*_RINGS, *names]) + ",", COLUMNS - 16),
        paired=kernel.paired,
        **slots,
    )
    return Emitted(text, args)


def _in_halves(kernel: KernelPlan, name: str) -> bool:
    """Whether a tile is read by halves, which are loaded where they are needed."""
    readers = [node for node in kernel.steps if name in node.inputs]
    return any(node.type.cols != kernel.cols for node in readers)


def ring_functions(text: str) -> list[str]:
    """The functions that such kernels of a file share."""
    found = [expanded("gemm/ring_functions.jinja", "functions")]
    if "leave_part(" in text:
        found.append(expanded("gemm/ring_functions.jinja", "sharing"))
    return found
