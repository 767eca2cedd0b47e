"""The kernel of a projection of few rows: `gemm/decode.py.jinja` filled from a kernel plan."""

from __future__ import annotations

from dataclasses import replace

from fusedsl.blocks.gemm.decode import admit_next, await_earlier, fetch_ahead, gather_parts
from fusedsl.codegen.body import Body
from fusedsl.codegen.kernels import (
    Emitted,
    epilogue,
    finish,
    operands,
    streamed,
)
from fusedsl.codegen.rows import depends_on_none, emit_columns, statistics_pass
from fusedsl.codegen.source import COUNTERS, Arg
from fusedsl.codegen.templates import main_loop
from fusedsl.fuse import KernelPlan, Plan, anchor_operands, is_reduction
from fusedsl.ir import Contracts

_CONFIG = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "PRECISION", "SPLIT", "AHEAD", "PDL")

#: What the skeleton calls.
FEW_ROWS_FUNCTIONS = (admit_next, await_earlier, fetch_ahead, gather_parts)

#: Bytes that a request for a cache line brings.
_LINE = 128


def emit_few_rows(plan: Plan, kernel: KernelPlan, *, tma: bool, keep_roundings: bool) -> Emitted:
    """Emit a projection of few rows. `tma`: operands come through tensor descriptors; what the
    epilogue loads and stores goes through pointers."""
    assert kernel.anchor is not None
    body = Body(plan, kernel, False, keep_roundings, "WIDTH")
    slots = operands(body, kernel, tma)
    slots["pointer_skip"] = "" if tma else main_loop("pointer_skip", _k_last(kernel))
    ahead = _ahead(body, kernel)
    partial = _partial_sums(plan, body, kernel)
    stream, rest = streamed(body, kernel)
    # a kernel that sees all of K can take its statistics along the way
    whole = not partial["parts"]
    passes = _passes(body, kernel, "BLOCK_K" if whole else "STREAM_K")
    along = _along(passes.pop()) if whole and len(passes) == 1 else {}
    columns, side = epilogue(body, kernel, rest)
    return finish(
        kernel,
        body,
        "gemm/decode.py.jinja",
        _CONFIG,
        K="K",
        tma=tma,
        paired=kernel.paired,
        tile_n="BLOCK_N // 2" if kernel.paired else "BLOCK_N",
        ahead=ahead,
        stream=stream,
        passes=passes,
        along=along,
        wide="BLOCK_K" if whole else "STREAM_K",
        column_lines=columns,
        side_lines=side,
        **partial,
        **slots,
    )


def _k_last(kernel: KernelPlan) -> bool:
    assert kernel.anchor is not None
    return kernel.anchor.block.laws_of(Contracts)[0].k_axis == 1


def _ahead(body: Body, kernel: KernelPlan) -> str:
    """Lines that ask for the weights of the first steps."""
    assert kernel.anchor is not None
    weight = anchor_operands(kernel.anchor)[1]
    body.args.setdefault("b_ptr", Arg("b_ptr", "pointer", weight))
    body.args.setdefault("b_stride", Arg("b_stride", "stride", weight))
    line = _LINE // body.type_of(weight).dtype.bytes
    return main_loop("ahead", kernel.paired, _k_last(kernel), "N", "K", line)


def _partial_sums(plan: Plan, body: Body, kernel: KernelPlan) -> dict[str, object]:
    """Arguments of a projection whose K may be shared, and of one that clears another's counters.

    The counters must be zero before the kernel starts, so the projection before it in the program
    clears them; the first one has none before it, and is not split.
    """
    order = [k.name for k in plan.kernels if k.few_rows]
    at = order.index(kernel.name)
    names: dict[str, object] = {"parts": "", "arrived": "", "clears": "", "counters": COUNTERS}
    if at:
        body.args["parts_ptr"] = Arg("parts_ptr", "pointer", f"{kernel.name}.parts")
        body.args["arrived_ptr"] = Arg("arrived_ptr", "pointer", f"{kernel.name}.arrived")
        names |= {"parts": "parts_ptr", "arrived": "arrived_ptr"}
    if at + 1 < len(order):
        body.args["clear_ptr"] = Arg("clear_ptr", "pointer", f"{order[at + 1]}.arrived")
        names["clears"] = "clear_ptr"
    return names


def _along(taken: dict[str, list[str]]) -> dict[str, list[str]]:
    """A pass as a part of the main loop: its loads go ahead of the dot, what it computes after."""
    loads = [line for line in taken["inside"] if "tl.load(" in line]
    return {**taken, "loads": loads, "inside": [n for n in taken["inside"] if n not in loads]}


def _passes(body: Body, kernel: KernelPlan, wide: str) -> list[dict[str, list[str]]]:
    """Passes over the streamed operand that take its statistics, the dependent ones later; `wide`
    columns at a time."""
    passes: list[dict[str, list[str]]] = []
    remaining = list(kernel.recomputed)
    stored, body.kernel = body.kernel, replace(kernel, steps=kernel.recomputed, writes=())
    width, body.width = body.width, wide
    while any(is_reduction(node) for node in remaining):
        ready = [n for n in remaining if is_reduction(n) and depends_on_none(n, remaining)]
        passes.append(statistics_pass(body, body.kernel, ready, wide, "K"))
        remaining = [n for n in remaining if n not in ready]
        remaining = emit_columns(body, remaining, passes[-1]["after"])
    body.kernel, body.width = stored, width
    return passes
